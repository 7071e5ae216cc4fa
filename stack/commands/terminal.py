"""Text for a terminal that did not ask for trouble, and the one place where errors become words."""

from __future__ import annotations

import functools
import os
import re
import signal
import sys
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, ParamSpec

import typer

from contracts.errors import HoldfastError

# Every command imports this module, and most need only some of these: each is imported where it
# is used, because together they take longer than a short command runs.
if TYPE_CHECKING:
    from pydantic import BaseModel
    from rich.console import Console
    from rich.text import Text

P = ParamSpec("P")

INTERRUPTED = 128 + signal.SIGINT
# A pipe has no width: tables must not lose columns to a guess of 80.
PIPE_COLUMNS = 240

# Sequences go with their payload (a title, a colour, a clipboard write); payloads end at the
# next ESC or BEL, so that the search stays linear. What then is left of ESC is a bare control.
_SEQUENCES = re.compile(
    "(?:\x1b\\]|\x9d)[^\x07\x1b\x9c]*(?:\x07|\x1b\\\\|\x9c)"
    "|(?:\x1b[PX^_]|[\x90\x98\x9e\x9f])[^\x1b\x9c]*(?:\x1b\\\\|\x9c)"
    "|(?:\x1b\\[|\x9b)[0-?]*[ -/]*[@-~]"
    "|\x1b[ -/]*[0-~]"
)
# C0 but tab and newline, DEL, C1, and the marks that reorder text on the screen.
_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")
_SURROGATES = re.compile("[\ud800-\udfff]")


def safe(text: str) -> str:
    """`text` without anything a terminal would obey: lines, tabs and visible characters."""
    text = _SEQUENCES.sub("", text).replace("\r\n", "\n").replace("\r", "\n")
    return _SURROGATES.sub("\ufffd", _CONTROLS.sub("", text))


def one_line(text: str, width: int = 200) -> str:
    """The start of `text` on one line, safe to show."""
    words = " ".join(safe(text[: 8 * width]).split())
    return words if len(words) <= width and len(text) <= 8 * width else words[: width - 1] + "…"


def console(*, stderr: bool = False, quiet: bool = False) -> Console:
    """Markup is off: what agents and users write is shown, never interpreted."""
    from rich.console import Console

    seen = (sys.stderr if stderr else sys.stdout).isatty()
    return Console(
        stderr=stderr,
        quiet=quiet,
        markup=False,
        highlight=False,
        emoji=False,
        soft_wrap=True,
        width=None if seen else PIPE_COLUMNS,
    )


def styled(text: str, style: str = "") -> Text:
    from rich.text import Text

    return Text(safe(text), style=style)


def put_json(value: BaseModel) -> None:
    """One object (an event as the api sends it) on a line of its own, at once."""
    from contracts.events import EventBase, encode

    line = encode(value).decode() if isinstance(value, EventBase) else value.model_dump_json()
    typer.echo(line.rstrip("\n"))


def put_error(error: HoldfastError) -> None:
    err = console(stderr=True)
    err.print(styled(f"error: {error.message or type(error).__name__}", "red"))
    if error.hint:
        err.print(styled(f"hint: {error.hint}"))


def command(body: Callable[P, Coroutine[Any, Any, int | None]]) -> Callable[P, None]:
    """An async function as a command: its result is the exit code, its errors are two lines."""

    @functools.wraps(body)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        raise typer.Exit(_exit_code(body(*args, **kwargs)))

    return run


def _exit_code(work: Coroutine[Any, Any, int | None]) -> int:
    import asyncio

    expected = (HoldfastError, OSError, KeyboardInterrupt)
    try:
        return asyncio.run(work) or 0
    except expected as error:
        return _told(error)
    except BaseExceptionGroup as group:
        # A TaskGroup wraps what ended it; a bug among that is shown as one, with its trace.
        known, bugs = group.split(expected)
        if known is None or bugs is not None:
            raise
        return _told(_first(known))


def _told(error: BaseException) -> int:
    """Says what went wrong; returns the exit code."""
    if isinstance(error, KeyboardInterrupt):
        return INTERRUPTED
    if isinstance(error, BrokenPipeError):
        # `| head` has read enough; the interpreter must not fail on its last flush.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    if isinstance(error, HoldfastError):
        put_error(error)
    elif isinstance(error, OSError):
        where = f": {error.filename}" if error.filename else ""
        put_error(HoldfastError(f"{error.strerror or error}{where}"))
    return 1


def _first(group: BaseExceptionGroup[Any]) -> BaseException:
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
