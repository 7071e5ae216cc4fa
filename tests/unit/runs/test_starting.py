"""A session's turns start one after the other, and only with a grant that is newer."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Collection
from pathlib import Path
from typing import Any, cast
from uuid import UUID, uuid4

import pytest

from contracts.bodies import RunRequest
from contracts.errors import StaleEpoch
from sidecar.runs.engine import Runs
from sidecar.runs.gateway import Gateway
from sidecar.runs.turn import Turn
from tests.support.runs import request_of


class BusySandboxes:
    """Every session's sandbox is in use, so that turns wait and do nothing."""

    def __init__(self, gateway: Gateway) -> None:
        self.gateway = gateway
        self._locks: dict[UUID, asyncio.Lock] = {}

    def lock(self, session_id: UUID) -> Any:
        return Never()

    async def reap(self) -> None:
        await asyncio.Event().wait()

    def let_go(self, *, except_for: Collection[UUID]) -> None: ...


class Never:
    """A lock that somebody else holds."""

    async def __aenter__(self) -> None:
        await asyncio.Event().wait()

    async def __aexit__(self, *_: object) -> None: ...


@contextlib.asynccontextmanager
async def opened(data_dir: Path) -> AsyncIterator[Runs]:
    gateway = Gateway(data_dir / "no.sock")
    sandboxes = cast(Any, BusySandboxes(gateway))
    async with Runs.open(data_dir, sandboxes, cast(Any, None), {}) as runs:
        yield runs
    await gateway.aclose()


def granted(session_id: UUID, epoch: int) -> RunRequest:
    return request_of(session_id).model_copy(update={"epoch": epoch})


@pytest.fixture
def turns(monkeypatch: pytest.MonkeyPatch) -> dict[UUID, Turn]:
    """The turns that were begun, by id."""
    begun: dict[UUID, Turn] = {}
    init = Turn.__init__

    def note(turn: Turn, journal: Any, *rest: Any, **more: Any) -> None:
        init(turn, journal, *rest, **more)
        begun[journal.request.turn_id] = turn

    monkeypatch.setattr(Turn, "__init__", note)
    return begun


@pytest.mark.parametrize("epoch", [1, 4, 5])
async def test_a_grant_that_is_not_newer_is_refused_and_stops_nothing(
    tmp_path: Path, turns: dict[UUID, Turn], epoch: int
) -> None:
    session_id = uuid4()
    first = granted(session_id, 5)
    async with opened(tmp_path) as runs:
        await runs.start(first)
        with pytest.raises(StaleEpoch):
            await runs.start(granted(session_id, epoch))
        assert list(turns) == [first.turn_id]
        assert not turns[first.turn_id].cancelled.is_set()
        assert len(list((tmp_path / "runs").glob("*.ndjson"))) == 1


async def test_a_newer_grant_stops_the_turn_that_still_runs(
    tmp_path: Path, turns: dict[UUID, Turn]
) -> None:
    session_id = uuid4()
    old, new, other = granted(session_id, 5), granted(session_id, 6), granted(uuid4(), 5)
    async with opened(tmp_path) as runs:
        for request in (old, other, new):
            await runs.start(request)
        assert turns[old.turn_id].cancelled.is_set()
        assert not turns[new.turn_id].cancelled.is_set()
        assert not turns[other.turn_id].cancelled.is_set()


async def test_the_same_turn_may_be_asked_for_again(
    tmp_path: Path, turns: dict[UUID, Turn]
) -> None:
    request = granted(uuid4(), 5)
    async with opened(tmp_path) as runs:
        first = await runs.start(request)
        assert await runs.start(request) == first
        assert len(turns) == 1
        assert not turns[request.turn_id].cancelled.is_set()
