"""An event loop that tells of every step of every task, on a clock of its own.

Nothing waits: when all tasks sleep, the clock jumps to the first that wakes. Threads are run in
place. So a run is the same each time, and takes as long as its code.
"""

from __future__ import annotations

import asyncio
import os
import selectors
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from contextvars import Context
from pathlib import Path
from typing import Any, TypeVar
from unittest import mock

T = TypeVar("T")

# What changes a directory, by the name of Python's audit event.
CHANGES = frozenset({"os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.truncate", "os.link"})
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
# More steps than any run takes: one that never ends fails here.
MOST_STEPS = 200_000


class Clock:
    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


class JumpingSelector(selectors.SelectSelector):
    """Sees no input, and lets the time pass that it was to wait for."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self._clock = clock

    def select(self, timeout: float | None = None) -> list[Any]:
        if timeout is None:
            raise AssertionError("every task waits for something that never comes")
        self._clock.now += max(timeout, 0.0)
        return []


class ObservedLoop(asyncio.SelectorEventLoop):
    def __init__(self, clock: Clock, on_step: Callable[[], None]) -> None:
        super().__init__(JumpingSelector(clock))
        self._on_step = on_step
        self._steps = 0

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        return super().call_soon(self._step, callback, args, context=context)

    def _step(self, callback: Callable[..., Any], args: tuple[Any, ...]) -> None:
        self._steps += 1
        if self._steps > MOST_STEPS:
            raise AssertionError(f"no end after {MOST_STEPS} steps")
        self._on_step()
        callback(*args)

    def run_in_executor(  # type: ignore[override]
        self, executor: Any, func: Callable[..., T], *args: Any
    ) -> asyncio.Future[T]:
        future: asyncio.Future[T] = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as error:  # noqa: BLE001 - it is the caller's
            future.set_exception(error)
        return future


# Called before a write: where it is, and whether it takes room on the disk.
OnWrite = Callable[[str, bool], None]
_on_write: OnWrite | None = None
_below = ""


def _notice(event: str, arguments: tuple[Any, ...]) -> None:
    if _on_write is None:
        return
    if event == "open":
        path, _, flags = arguments
        if not (isinstance(flags, int) and flags & WRITING):
            return
        takes_room = bool(flags & os.O_CREAT)
    elif event in CHANGES:
        path, takes_room = arguments[0], event == "os.mkdir"
    else:
        return
    if isinstance(path, str | bytes | os.PathLike) and os.fsdecode(path).startswith(_below):
        _on_write(os.fsdecode(path), takes_room)


sys.addaudithook(_notice)


@contextmanager
def _noticing_writes(below: Path, on_write: OnWrite) -> Iterator[None]:
    """Call `on_write` before each write below the directory."""
    global _on_write, _below
    _on_write, _below = on_write, str(below)
    try:
        yield
    finally:
        _on_write = None


def run_observed(
    work: Coroutine[Any, Any, T],
    below: Path,
    on_step: Callable[[], None],
    on_write: OnWrite,
) -> T:
    """Run the work to its end. `on_step` is called before every step of every task, `on_write`
    before every write below the directory, which does not happen when it raises."""
    clock, real, here = Clock(), time.monotonic, threading.get_ident()

    def monotonic() -> float:
        # Threads of other tests, a server's among them, must not wait for a time that never comes.
        return clock() if threading.get_ident() == here else real()

    with (
        mock.patch.object(time, "monotonic", monotonic),
        # What a power cut takes is not the question here, and the disk is shared.
        mock.patch.object(os, "fsync", return_value=None),
        mock.patch.object(os, "fdatasync", return_value=None),
    ):
        loop = ObservedLoop(clock, on_step)
        try:
            with _noticing_writes(below, on_write):
                return loop.run_until_complete(work)
        finally:
            loop.close()
