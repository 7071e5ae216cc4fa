"""Every turn ends with an event, whatever happens to the disk or in the sidecar."""

from __future__ import annotations

import asyncio
import errno
import os
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from sidecar.runs import journal as journals
from sidecar.runs.journal import Journal
from sidecar.runs.turn import Turn
from tests.support.runs import SlowGateway, ended, opened_runs, request_of


class Disk:
    """Journals are on a disk that is full for a time."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.full = False
        self.refused = 0
        write = Journal._write

        def limited(journal: Journal, data: bytes, before: int) -> None:
            if self.full:
                self.refused += 1
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            write(journal, data, before)

        monkeypatch.setattr(Journal, "_write", limited)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    monkeypatch.setattr(journals, "FIRST_PAUSE_SECONDS", 0.01)
    monkeypatch.setattr(journals, "LONGEST_PAUSE_SECONDS", 0.01)
    return Disk(monkeypatch)


def last_event(data_dir: Path, turn_id: object) -> dict[str, Any]:
    *_, last = Journal.load(data_dir / "runs" / f"{turn_id}.ndjson").entries()
    return last.event


async def test_a_turn_that_ends_on_a_full_disk_ends_when_there_is_room(
    tmp_path: Path, disk: Disk
) -> None:
    request = request_of(uuid4())
    gateway = SlowGateway()
    async with opened_runs(tmp_path, gateway) as runs:
        await runs.start(request)
        disk.full = True
        gateway.let_go.set()
        async with asyncio.timeout(20):
            while disk.refused < 3:
                await asyncio.sleep(0.01)
        assert runs.get(request.turn_id).state == "running"
        assert runs.cancel(request.turn_id).state == "running"
        disk.full = False
        await ended(runs, request.turn_id)
        async with asyncio.timeout(20):
            assert [part async for part in await runs.follow(request.turn_id, 0)]
    assert last_event(tmp_path, request.turn_id)["error"]["code"] == "unavailable"


async def test_a_turn_that_crashes_is_interrupted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def crash(_: Turn) -> None:
        raise LookupError("a bug")

    monkeypatch.setattr(Turn, "run", crash)
    request = request_of(uuid4())
    async with opened_runs(tmp_path) as runs:
        await runs.start(request)
        await ended(runs, request.turn_id)
    last = last_event(tmp_path, request.turn_id)
    assert (last["type"], last["error"]["code"]) == ("turn.interrupted", "internal")
    assert "a bug" in last["error"]["message"]


async def test_a_run_that_cannot_begin_is_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError("too many open files")

    request = request_of(uuid4())
    async with opened_runs(tmp_path) as runs:
        with monkeypatch.context() as patch:
            patch.setattr(Turn, "__init__", fail)
            with pytest.raises(OSError, match="too many"):
                await runs.start(request)
        assert (await runs.start(request)).state == "running"
        await ended(runs, request.turn_id)
