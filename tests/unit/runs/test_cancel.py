"""A cancel holds until the turn has ended, whoever carries it then."""

from __future__ import annotations

from pathlib import Path
from uuid import uuid4

from sidecar.runs import progress
from sidecar.runs.journal import Journal
from tests.support.runs import SlowGateway, opened_runs, request_of


async def test_a_cancel_outlives_the_sidecar_that_heard_it(tmp_path: Path) -> None:
    request = request_of(uuid4())
    async with opened_runs(tmp_path, SlowGateway()) as runs:
        await runs.start(request)
        assert runs.cancel(request.turn_id).state == "running"
    async with opened_runs(tmp_path, SlowGateway()) as runs:
        assert runs.get(request.turn_id).state == "running"
        assert runs._turns[request.turn_id].cancelled.is_set()


async def test_a_turn_that_is_replaced_stays_cancelled(tmp_path: Path) -> None:
    session_id = uuid4()
    old, new = request_of(session_id, 1), request_of(session_id, 2)
    async with opened_runs(tmp_path, SlowGateway()) as runs:
        await runs.start(old)
        await runs.start(new)
        cancelled = {
            request.turn_id: progress.load(
                Journal.load(tmp_path / "runs" / f"{request.turn_id}.ndjson")
            ).cancelled
            for request in (old, new)
        }
    assert cancelled == {old.turn_id: True, new.turn_id: False}
