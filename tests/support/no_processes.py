"""A guard for the fast tier: a test in `tests/unit` that starts a process fails."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Generator, Iterator
from typing import Any

import pytest

EVENTS = frozenset(
    {"subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.exec", "os.system"}
)


class ProcessStarted(AssertionError):
    """A test of the fast tier has started a process."""


_started: list[str] | None = None  # by the test that runs; None while none is guarded


def _refuse(event: str, arguments: tuple[Any, ...]) -> None:
    if _started is not None and event in EVENTS:
        _started.append(f"{event} {arguments[:2]!r}"[:300])
        raise ProcessStarted(f"tests/unit starts no process, but this one does: {_started[-1]}")


sys.addaudithook(_refuse)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup() -> Generator[None]:
    with _refusing_processes():
        yield


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Generator[None]:
    with _refusing_processes():
        yield


@contextlib.contextmanager
def _refusing_processes() -> Iterator[None]:
    """Refuse every process; fail also when the refusal was swallowed."""
    global _started
    found: list[str] = []
    _started = found
    try:
        yield
    finally:
        _started = None
    if found:
        raise ProcessStarted(f"tests/unit starts no process, but this one does: {found[0]}")
