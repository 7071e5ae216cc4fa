"""The supervisor of a detached stack, or of the parts that are named; whoever starts it reads its
state file."""

from __future__ import annotations

import asyncio
import sys

from contracts.errors import HoldfastError
from contracts.hardening import no_core_dumps
from stack.embedded.stack import ALL_PARTS, run_stack
from stack.settings import load_settings


def main() -> None:
    no_core_dumps()
    try:
        asyncio.run(run_stack(load_settings(), only=sys.argv[1:] or ALL_PARTS))
    except HoldfastError as error:
        sys.exit(f"error: {error.message}")


if __name__ == "__main__":
    main()
