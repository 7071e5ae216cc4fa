"""The supervisor of a detached stack; `holdfast up --detach` starts it and reads its state file."""

from __future__ import annotations

import asyncio
import sys

from contracts.errors import HoldfastError
from stack.embedded.stack import run_stack
from stack.settings import load_settings


def main() -> None:
    try:
        asyncio.run(run_stack(load_settings()))
    except HoldfastError as error:
        sys.exit(f"error: {error.message}")


if __name__ == "__main__":
    main()
