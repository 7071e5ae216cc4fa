"""The gateway's records as events of a turn: each once, whoever is started again in between."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from contracts.bodies import GatewayRecord
from contracts.events import (
    ErrorInfo,
    EventBase,
    ModelFailed,
    Raw,
    TurnCancelled,
    TurnCompleted,
    TurnFailed,
    TurnInterrupted,
    Usage,
)
from sidecar.runs.gateway import Gateway
from sidecar.runs.journal import Journal
from sidecar.runs.records import Recorded, event_of
from tests.support.runs import request_of


async def test_a_turn_that_the_gateway_never_heard_of_asks_nothing_of_it(tmp_path: Path) -> None:
    journal = Journal.create(tmp_path, request_of(uuid4()))
    nobody = Gateway(tmp_path / "no.sock")
    recorded = Recorded(nobody, journal, 5, begun=False)
    async with asyncio.timeout(5):
        await recorded.take_rest(cut_off=True)
        await recorded.forget()
    await nobody.aclose()


def failed(code: str) -> TurnFailed:
    return TurnFailed(error=ErrorInfo(code=code, message="m"))


INTERRUPTED = TurnInterrupted(error=ErrorInfo(code="harness_exited", message="m"))


@pytest.mark.parametrize(
    ("end", "judged"),
    [
        (TurnCompleted(), "model_failed"),
        (failed("prompt_failed"), "model_failed"),
        (failed("not_durable"), "not_durable"),
        (TurnCancelled(), None),
        (INTERRUPTED, "harness_exited"),
    ],
)
async def test_only_what_the_harness_says_of_a_failed_model_is_overruled(
    tmp_path: Path, end: EventBase, judged: str | None
) -> None:
    journal = Journal.create(tmp_path, request_of(uuid4()))
    nobody = Gateway(tmp_path / "no.sock")
    recorded = Recorded(nobody, journal, 0, begun=True)
    assert recorded.judged(end) is end, "nothing was asked of a model"
    await journal.append(ModelFailed(status=500, message="m"), record=1)
    told = recorded.judged(end)
    error = getattr(told, "error", None)
    assert (None if error is None else error.code) == judged
    await nobody.aclose()


def record_of(kind: str, **data: Any) -> GatewayRecord:
    return GatewayRecord(id=1, at=datetime.now(UTC), kind=kind, data=data)


def test_a_record_of_another_turn_is_late() -> None:
    turn_id = uuid4()
    for of_turn, late in ((str(turn_id), False), (str(uuid4()), True), (None, False)):
        event = event_of(record_of("usage", turn_id=of_turn, input_tokens=3), turn_id)
        assert isinstance(event, Usage)
        assert (event.late, event.input_tokens) == (late, 3)


def test_a_request_that_was_lost_with_the_gateway_is_a_failure() -> None:
    event = event_of(record_of("model.lost", model="m", side=True), uuid4())
    assert isinstance(event, ModelFailed)
    assert (event.code, event.model, event.side) == ("gateway_restarted", "m", True)
    assert event.turn_id is None


def test_a_record_that_does_not_fit_is_kept_as_it_is() -> None:
    for record in (record_of("usage", input_tokens="many"), record_of("from.the.future", a=1)):
        event = event_of(record, uuid4())
        assert isinstance(event, Raw)
        assert event.data["kind"] == record.kind
