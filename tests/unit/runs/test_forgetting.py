"""A sidecar that runs for weeks remembers the runs of a day."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Collection
from pathlib import Path
from typing import Any, cast
from uuid import UUID

import pytest

from contracts import events
from contracts.bodies import RunRequest
from contracts.errors import RunNotFound
from sidecar.runs.engine import Runs
from sidecar.runs.journal import Journal


class NoSandboxes:
    async def reap(self) -> None:
        await asyncio.Event().wait()

    def let_go(self, *, except_for: Collection[UUID]) -> None:
        assert not except_for


async def test_runs_that_ended_long_ago_are_forgotten_without_a_restart(tmp_path: Path) -> None:
    request = RunRequest(
        turn_id=uuid.uuid4(),
        session_id=uuid.uuid4(),
        epoch=1,
        prompt="p",
        harness="pi",
        provider="local",
    )
    journal = Journal.create(tmp_path / "runs", request)
    await journal.append(events.TurnCompleted())
    async with Runs.open(tmp_path, cast(Any, NoSandboxes()), cast(Any, None), {}) as runs:
        runs.forget_before(time.time() - 60)
        assert runs.get(request.turn_id).state == "ended"
        runs.forget_before(time.time() + 60)
        with pytest.raises(RunNotFound):
            runs.get(request.turn_id)
    assert list((tmp_path / "runs").iterdir()) == []
