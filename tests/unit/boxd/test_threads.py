"""Calls that hang: they are given up in time, and hold up no others than their like."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Iterator
from importlib import import_module
from types import ModuleType

import pytest

from tests.support.paths import ROOT

WITHIN = 30.0


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    monkeypatch.syspath_prepend(str(ROOT / "sandbox-image" / "boxd"))
    yield import_module("threads")
    for name in ("asked", "threads"):
        sys.modules.pop(name)


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    opened = threading.Event()
    yield opened
    opened.set()


async def test_a_call_that_hangs_is_given_up_and_its_result_is_not_lost(
    threads: ModuleType, gate: threading.Event
) -> None:
    pool = threads.Threads("test")
    late: asyncio.Queue[str] = asyncio.Queue()

    def hang() -> str:
        gate.wait(WITHIN)
        return "late"

    with pytest.raises(import_module("asked").Refused) as refused:
        await pool.run(hang, 0.05, late.put_nowait)
    assert refused.value.kind == "hang"
    assert await pool.run(lambda: "in time") == "in time"
    gate.set()
    async with asyncio.timeout(WITHIN):
        assert await late.get() == "late"


async def test_what_waits_for_a_thread_is_given_up_without_a_start(
    threads: ModuleType, gate: threading.Event
) -> None:
    pool = threads.Threads("test", most=1)
    hanging = asyncio.ensure_future(pool.run(lambda: gate.wait(WITHIN)))
    await asyncio.sleep(0)  # it is the first in the queue
    started: list[str] = []
    with pytest.raises(import_module("asked").Refused):
        await pool.run(lambda: started.append("second"), 0.05)
    gate.set()
    assert await hanging
    assert await pool.run(lambda: "third") == "third"
    assert started == []


async def test_without_room_for_another_thread_those_that_are_there_work(
    threads: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fork bomb leaves none."""
    pool = threads.Threads("test", kept=1)

    def no_room(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", no_room)
    async with asyncio.timeout(WITHIN):
        calls = [pool.run(lambda number=number: number) for number in range(5)]
        assert await asyncio.gather(*calls) == list(range(5))


async def test_what_a_call_raises_is_the_callers(threads: ModuleType) -> None:
    def fail() -> None:
        raise TimeoutError("of the file system")

    with pytest.raises(TimeoutError, match="of the file system"):
        await threads.Threads("test").run(fail, WITHIN)
