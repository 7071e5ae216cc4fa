"""A sidecar that is started again: it goes on with every run that it can read."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest

from contracts import events
from contracts.errors import RunNotFound
from sidecar.runs import progress
from sidecar.runs.engine import KEEP_SECONDS
from sidecar.runs.journal import Journal
from tests.support.runs import SlowGateway, ended, opened_runs, request_of


def events_of(journal: Journal) -> list[dict[str, Any]]:
    return [entry.event for entry in Journal.load(journal.path).entries()]


def age(path: Path, seconds: float) -> None:
    past = time.time() - seconds
    os.utime(path, (past, past))


LINES = {
    "empty": b"",
    "no-json": b"%%\n",
    "newer-request": b'{"turn_id": "later"}\n',
    "newer-line": b'{"n": 1, "event": {"type": "usage"}, "of_the_future": 1}\n',
    "line-without-event": b'{"n": 1}\n',
    "event-without-type": b'{"n": 1, "event": {}}\n',
    "list": b"[1]\n",
}


@pytest.mark.parametrize("broken", LINES)
async def test_a_run_that_cannot_be_read_is_set_aside_and_the_others_go_on(
    tmp_path: Path, broken: str
) -> None:
    good = Journal.create(tmp_path / "runs", request_of(uuid4()))
    bad = Journal.create(tmp_path / "runs", request_of(uuid4()))
    if broken in ("newer-line", "line-without-event", "event-without-type", "list"):
        with bad.path.open("ab") as file:
            file.write(LINES[broken])
    else:
        bad.path.write_bytes(LINES[broken])
    async with opened_runs(tmp_path) as runs:
        await ended(runs, good.request.turn_id)
        with pytest.raises(RunNotFound):
            runs.get(bad.request.turn_id)
    assert not bad.path.exists()
    assert bad.path.with_name(f"{bad.path.name}.broken").exists()


@pytest.mark.parametrize("text", ["", "{", "[]", '{"phase": "opening"}', '{"talk": null, "x": 1}'])
async def test_a_turn_whose_progress_cannot_be_read_is_interrupted_and_not_run_twice(
    tmp_path: Path, text: str
) -> None:
    journal = Journal.create(tmp_path / "runs", request_of(uuid4()))
    other = Journal.create(tmp_path / "runs", request_of(uuid4()))
    journal.path.with_suffix(".progress").write_text(text)
    async with opened_runs(tmp_path) as runs:
        await ended(runs, other.request.turn_id)
        await ended(runs, journal.request.turn_id)
    last = events_of(journal)[-1]
    assert (last["type"], last["error"]["code"]) == ("turn.interrupted", "harness_exited")
    assert "cannot be read" in last["error"]["message"]


@pytest.mark.parametrize("text", ["", "{", "[]", '{"v": 99}', '{"v": 3}', "\0\0\0"])
async def test_a_sandbox_record_that_cannot_be_read_keeps_no_turn_from_going_on(
    tmp_path: Path, text: str
) -> None:
    journal = Journal.create(tmp_path / "runs", request_of(uuid4()))
    (tmp_path / "live").mkdir()
    record = tmp_path / "live" / f"{uuid4()}.json"
    record.write_text(text)
    async with opened_runs(tmp_path) as runs:
        await ended(runs, journal.request.turn_id)
        assert runs.sandboxes.live.get(UUID(record.stem)) is None
    assert record.with_name(f"{record.name}.broken").exists()


async def test_a_run_without_an_end_is_taken_up_however_old_it_is(tmp_path: Path) -> None:
    unended = Journal.create(tmp_path / "runs", request_of(uuid4()))
    finished = Journal.create(tmp_path / "runs", request_of(uuid4()))
    await finished.append(events.TurnCompleted())
    for journal in (unended, finished):
        journal.path.with_suffix(".progress").write_text(
            json.dumps({"phase": "opening", "sandbox_id": "", "talk": None, "end": None})
        )
        age(journal.path, KEEP_SECONDS + 60)
    async with opened_runs(tmp_path) as runs:
        await ended(runs, unended.request.turn_id)
        with pytest.raises(RunNotFound):
            runs.get(finished.request.turn_id)
    left = {unended.path, unended.path.with_suffix(".ended")}
    assert set((tmp_path / "runs").iterdir()) == left


@pytest.mark.parametrize("suffix", [".progress", ".ended"])
async def test_progress_without_its_run_is_removed(tmp_path: Path, suffix: str) -> None:
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / f"{uuid4()}{suffix}").write_text("{}")
    async with opened_runs(tmp_path):
        assert list((tmp_path / "runs").iterdir()) == []


async def test_progress_of_a_run_that_has_ended_is_removed(tmp_path: Path) -> None:
    """Its sidecar died between the two."""
    finished = Journal.create(tmp_path / "runs", request_of(uuid4()))
    await finished.append(events.TurnCompleted())
    progress.save(finished, progress.Progress(phase="settling"))
    async with opened_runs(tmp_path):
        left = {finished.path, finished.path.with_suffix(".ended")}
        assert set((tmp_path / "runs").iterdir()) == left


async def test_of_several_runs_of_a_session_all_but_the_newest_are_cancelled(
    tmp_path: Path,
) -> None:
    session_id, other = uuid4(), uuid4()
    requests = [request_of(session_id, epoch) for epoch in (3, 1, 2)]
    alone = request_of(other, 1)
    for request in (*requests, alone):
        Journal.create(tmp_path / "runs", request)
    gateway = SlowGateway()
    async with opened_runs(tmp_path, gateway) as runs:
        cancelled = [runs._turns[each.turn_id].cancelled.is_set() for each in (*requests, alone)]
        assert cancelled == [False, True, True, False]
        assert len(runs.running()) == 4
        gateway.let_go.set()
        for request in (*requests, alone):
            await ended(runs, request.turn_id)
        assert runs.running() == []
    ends = [events_of(Journal.load(tmp_path / "runs" / f"{r.turn_id}.ndjson")) for r in requests]
    at = [told[-1]["at"] for told in ends]
    assert at[1] < at[2] < at[0], "in the order in which they were granted"


async def test_a_run_that_was_replaced_by_one_that_has_ended_is_cancelled(tmp_path: Path) -> None:
    session_id = uuid4()
    old, new = request_of(session_id, 1), request_of(session_id, 2)
    Journal.create(tmp_path / "runs", old)
    await Journal.create(tmp_path / "runs", new).append(events.TurnCompleted())
    async with opened_runs(tmp_path, SlowGateway()) as runs:
        assert runs._turns[old.turn_id].cancelled.is_set()
