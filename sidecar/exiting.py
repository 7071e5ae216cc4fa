"""The end of a short-lived program that has used a cloud's SDK."""

from __future__ import annotations

import logging
import os
import sys
from typing import NoReturn


def exit_process(code: int) -> NoReturn:
    """End with this exit code, without finalising the interpreter.

    E2B's SDK leaves threads of Rust (pyqwest) behind. One that calls into Python while the
    interpreter is finalised kills the process, now and then, after all its work was done.
    """
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
