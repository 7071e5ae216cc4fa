"""The journal of a run: numbered, on disk first, followed from anywhere."""

from __future__ import annotations

import asyncio
import json
import uuid
from pathlib import Path

import pytest

from contracts import events
from contracts.bodies import RunRequest
from sidecar.runs.journal import Journal


@pytest.fixture
def request_() -> RunRequest:
    return RunRequest(
        turn_id=uuid.uuid4(),
        session_id=uuid.uuid4(),
        epoch=1,
        prompt="p",
        harness="pi",
        provider="local",
    )


async def collected(journal: Journal, after: int) -> list[int]:
    numbers = []
    async for lines in journal.follow(after):
        numbers += [json.loads(line)["n"] for line in lines.splitlines()]
    return numbers


async def test_a_follower_gets_every_line_once_from_where_it_asks(
    tmp_path: Path, request_: RunRequest
) -> None:
    journal = Journal.create(tmp_path, request_)
    early = asyncio.ensure_future(collected(journal, 0))
    for number in range(5):
        await journal.append(events.Message(role="assistant", text=str(number)))
        await asyncio.sleep(0)
    late = asyncio.ensure_future(collected(journal, 3))
    await journal.append(events.TurnCompleted())
    async with asyncio.timeout(10):
        assert await early == [1, 2, 3, 4, 5, 6]
        assert await late == [4, 5, 6]
        assert await collected(journal, 6) == []


async def test_it_is_read_back_by_another_process_and_a_torn_line_is_cut(
    tmp_path: Path, request_: RunRequest
) -> None:
    journal = Journal.create(tmp_path, request_)
    await journal.append(events.Message(role="assistant", text="a\ud800\x00"), source=7)
    with journal.path.open("ab") as file:
        file.write(b'{"n": 2, "event": {"type": "mess')
    again = Journal.load(journal.path)
    assert (again.request, again.last_n, again.ended) == (request_, 1, False)
    await again.append(events.TurnCompleted())
    assert again.ended
    assert Journal.load(journal.path).last_n == 2


async def test_every_event_carries_its_session_and_turn(
    tmp_path: Path, request_: RunRequest
) -> None:
    journal = Journal.create(tmp_path, request_)
    await journal.append(events.TurnCompleted())
    async for lines in journal.follow(0):
        event = json.loads(lines)["event"]
        assert event["session_id"] == str(request_.session_id)
        assert event["turn_id"] == str(request_.turn_id)
