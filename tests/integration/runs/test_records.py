"""Records of a real gateway become events of a turn."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from uuid import UUID, uuid4

import pytest

from contracts.events import (
    Raw,
    from_dict,
)
from sidecar.gateway.records import SessionLog
from sidecar.runs.gateway import Gateway
from sidecar.runs.journal import Journal
from sidecar.runs.records import Recorded
from tests.support.gateway import Gateway as Process
from tests.support.gateway import gateway, until
from tests.support.runs import request_of


@pytest.fixture
async def process() -> AsyncIterator[Process]:
    async with gateway() as running:
        yield running


@pytest.fixture
async def line(process: Process) -> AsyncIterator[Gateway]:
    control = Gateway(process.control)
    yield control
    await control.aclose()


async def note(process: Process, session_id: UUID, *texts: str) -> None:
    """Let the gateway have noted something, by the log that it reads when it starts."""
    await process.end(signal.SIGKILL)
    log = SessionLog.load(process.sockets / ".records" / f"{session_id}.ndjson")
    for text in texts:
        log.add("thing", {"text": text})
    await process.start()


def told(journal: Journal) -> list[str]:
    known = [from_dict(entry.event) for entry in journal.entries()]
    return [event.data["data"]["text"] for event in known if isinstance(event, Raw)]


async def test_a_record_becomes_an_event_once_whoever_takes_it(
    process: Process, line: Gateway, tmp_path: Path
) -> None:
    session_id = uuid4()
    journal = Journal.create(tmp_path, request_of(session_id))
    recorded = Recorded(line, journal, 0, begun=False)
    await recorded.begin()
    await note(process, session_id, "one", "two")
    follower = asyncio.ensure_future(recorded.follow())
    await until(lambda: len(told(journal)) == 2)
    async with asyncio.TaskGroup() as group:
        for _ in range(3):
            group.create_task(recorded.take_rest())
    follower.cancel()
    assert told(journal) == ["one", "two"]
    # the sidecar dies here; the next one goes on with the journal, and the gateway has it all
    again = Journal.load(journal.path)
    adopted = Recorded(line, again, 0, begun=True)
    await note(process, session_id, "three")
    await adopted.take_rest()
    assert told(again) == ["one", "two", "three"]
    assert [entry.n for entry in again.entries()] == [1, 2, 3]


async def test_the_next_turn_tells_what_came_too_late_for_the_last(
    process: Process, line: Gateway, tmp_path: Path
) -> None:
    session_id = uuid4()
    first = Journal.create(tmp_path, request_of(session_id))
    recorded = Recorded(line, first, 0, begun=False)
    await recorded.begin()
    await note(process, session_id, "in time")
    await recorded.take_rest()
    await recorded.forget()
    await note(process, session_id, "late")
    for earlier in (first.last_record, 0):  # also when nobody remembers: what is taken is gone
        second = Journal.create(tmp_path, request_of(session_id))
        await Recorded(line, second, earlier, begun=True).take_rest()
        assert told(second) == ["late"]


async def test_records_that_cannot_be_had_now_do_not_fail_the_turn(
    process: Process, tmp_path: Path
) -> None:
    journal = Journal.create(tmp_path, request_of(uuid4()))
    async with contextlib.aclosing(Gateway(process.control, tries=2)) as line:
        recorded = Recorded(line, journal, 0, begun=False)
        await recorded.begin()
        await process.end(signal.SIGKILL)
        await recorded.take_rest(cut_off=True)
    assert journal.last_n == 0
