"""The journal of a run: numbered, on disk first, followed from anywhere."""

from __future__ import annotations

import asyncio
import json
import os
import resource
import tracemalloc
import uuid
from pathlib import Path

import pytest

from contracts import events
from contracts.bodies import RunRequest
from sidecar.runs.journal import PART_BYTES, Journal


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


async def test_followers_of_a_run_that_goes_on_can_be_released(
    tmp_path: Path, request_: RunRequest
) -> None:
    journal = Journal.create(tmp_path, request_)
    follower = asyncio.ensure_future(collected(journal, 0))
    await journal.append(events.Message(role="assistant", text="a"))
    await asyncio.sleep(0)
    await journal.release_followers()
    async with asyncio.timeout(10):
        assert await follower == [1]
        assert await collected(journal, 0) == [1]


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


async def test_what_is_remembered_of_a_run_does_not_grow_with_what_it_said(
    tmp_path: Path, request_: RunRequest
) -> None:
    journal = Journal.create(tmp_path, request_.model_copy(update={"prompt": "p" * 100_000}))
    text = "x" * 100_000
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        for _ in range(100):
            await journal.append(events.Message(role="assistant", text=text))
        await journal.append(events.TurnCompleted())
        journal.close()
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert after - before < 200_000, "10 MB were said"
    assert await collected(journal, 0) == list(range(1, 102))
    assert journal.request.prompt == ""
    assert Journal.load(journal.path).request.prompt == ""


async def test_a_late_follower_gets_a_long_journal_in_parts(
    tmp_path: Path, request_: RunRequest
) -> None:
    journal = Journal.create(tmp_path, request_)
    for _ in range(30):
        await journal.append(events.Message(role="assistant", text="x" * (PART_BYTES // 10)))
    await journal.append(events.Message(role="assistant", text="y" * 2 * PART_BYTES))
    await journal.append(events.TurnCompleted())
    parts = [part async for part in journal.follow(0)]
    assert len(parts) >= 4
    assert all(len(part) <= PART_BYTES or part.count(b"\n") == 1 for part in parts)
    assert b"".join(parts).count(b"\n") == 32


async def test_a_line_that_did_not_fit_on_the_disk_leaves_no_trace(
    tmp_path: Path, request_: RunRequest
) -> None:
    journal = Journal.create(tmp_path, request_)
    await journal.append(events.Message(role="assistant", text="one"))
    size = journal.path.stat().st_size
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + 100, hard))
    try:
        with pytest.raises(OSError, match="No space left"):
            await journal.append(events.Message(role="assistant", text="z" * 1000))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert journal.path.stat().st_size == size
    await journal.append(events.TurnCompleted())
    assert await collected(journal, 0) == [1, 2]
    assert Journal.load(journal.path).last_n == 2


async def test_a_follower_of_a_journal_that_was_removed_just_ends(
    tmp_path: Path, request_: RunRequest
) -> None:
    journal = Journal.create(tmp_path, request_)
    await journal.append(events.TurnCompleted())
    journal.path.unlink()
    assert await collected(journal, 0) == []


async def lines_after(journal: Journal, after: int) -> list[tuple[int, str]]:
    """The numbers and types of what a reader gets who has stored the lines up to `after`."""
    await journal.meet_reader(after)
    told = []
    async with asyncio.timeout(10):
        async for part in journal.follow(after):
            plain = [json.loads(line) for line in part.splitlines()]
            told += [(line["n"], line["event"]["type"]) for line in plain]
    return told


async def lose_tail(journal: Journal, kept: int) -> Journal:
    """The journal as the next process finds it after a power cut."""
    lines = journal.path.read_bytes().splitlines(keepends=True)
    journal.path.write_bytes(b"".join(lines[: kept + 1]))
    return Journal.load(journal.path)


async def test_a_number_that_a_reader_has_stored_is_never_given_again(
    tmp_path: Path, request_: RunRequest
) -> None:
    journal = Journal.create(tmp_path, request_)
    for number in range(8):
        await journal.append(events.Message(role="assistant", text=str(number)))
    again = await lose_tail(journal, 5)
    await again.append(events.RunAdopted(), source=40)
    await again.append(events.TurnCompleted())
    rest = [(9, "run.gap"), (10, "run.adopted"), (11, "turn.completed")]
    assert await lines_after(again, 8) == rest
    assert await lines_after(again, 9) == rest[1:]
    (gap,) = [entry.event for entry in again.entries() if entry.event["type"] == "run.gap"]
    assert gap["lines"] == 3
    third = Journal.load(again.path)
    assert (third.last_n, third.last_source, third.ended) == (11, 40, True)
    assert await lines_after(third, 8) == rest
    assert [entry.n for entry in third.entries()] == [1, 2, 3, 4, 5, 9, 10, 11]


async def test_a_run_that_lost_lines_goes_on_behind_what_the_reader_has(
    tmp_path: Path, request_: RunRequest
) -> None:
    journal = Journal.create(tmp_path, request_)
    for number in range(4):
        await journal.append(events.Message(role="assistant", text=str(number)))
    again = await lose_tail(journal, 1)
    await again.meet_reader(4)
    assert not again.ended
    await again.append(events.Message(role="assistant", text="new"))
    await again.append(events.TurnCompleted())
    assert await lines_after(again, 4) == [(5, "run.gap"), (6, "message"), (7, "turn.completed")]


async def test_a_reader_of_a_whole_journal_hears_of_no_gap(
    tmp_path: Path, request_: RunRequest
) -> None:
    journal = Journal.create(tmp_path, request_)
    await journal.append(events.Message(role="assistant", text="one"))
    again = Journal.load(journal.path)
    await again.append(events.TurnCompleted())
    assert await lines_after(again, 1) == [(2, "turn.completed")]
    assert await lines_after(again, 2) == []


async def test_a_follower_that_is_ahead_of_a_run_is_released_when_it_ends(
    tmp_path: Path, request_: RunRequest
) -> None:
    journal = Journal.create(tmp_path, request_)
    follower = asyncio.ensure_future(collected(journal, 8))
    await asyncio.sleep(0.01)
    await journal.append(events.TurnCompleted())
    async with asyncio.timeout(10):
        assert await follower == []


async def test_zeros_that_a_power_cut_left_are_cut(tmp_path: Path, request_: RunRequest) -> None:
    journal = Journal.create(tmp_path, request_)
    await journal.append(events.Message(role="assistant", text="one"))
    with journal.path.open("ab") as file:
        file.write(b"\0" * 100 + b'{"n": 3, "event": {"type": "message"}}\n')
    again = Journal.load(journal.path)
    assert (again.last_n, again.ended) == (1, False)
    await again.append(events.TurnCompleted())
    assert Journal.load(journal.path).last_n == 2


async def test_a_line_is_on_disk_before_anybody_sees_it(
    tmp_path: Path, request_: RunRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[int] = []
    fdatasync = os.fdatasync

    def noted(fd: int) -> None:
        synced.append(os.fstat(fd).st_size)
        fdatasync(fd)

    monkeypatch.setattr(os, "fdatasync", noted)
    journal = Journal.create(tmp_path, request_)
    for number in range(50):
        await journal.append(events.Message(role="assistant", text=str(number)))
    stream = journal.follow(0)
    assert (await anext(stream)).count(b"\n") == 50
    assert synced == [journal.path.stat().st_size], "once for all that had come"
    await journal.append(events.TurnCompleted())
    await anext(stream)
    assert len(synced) == 2
