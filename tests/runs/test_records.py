"""The gateway's records as events of a turn: each once, whoever is started again in between."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest

from contracts.bodies import GatewayRecord, RunRequest
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
    from_dict,
)
from sidecar.gateway.records import SessionLog
from sidecar.runs.gateway import Gateway
from sidecar.runs.journal import Journal
from sidecar.runs.records import Recorded, event_of
from tests.gateway.running import Gateway as Process
from tests.gateway.running import gateway, until


@pytest.fixture
async def process() -> AsyncIterator[Process]:
    async with gateway() as running:
        yield running


@pytest.fixture
async def line(process: Process) -> AsyncIterator[Gateway]:
    control = Gateway(process.control)
    yield control
    await control.aclose()


def request_of(session_id: UUID) -> RunRequest:
    return RunRequest(
        turn_id=uuid4(),
        session_id=session_id,
        epoch=1,
        prompt="p",
        harness="pi",
        provider="local",
    )


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


async def test_a_turn_that_the_gateway_never_heard_of_asks_nothing_of_it(tmp_path: Path) -> None:
    journal = Journal.create(tmp_path, request_of(uuid4()))
    nobody = Gateway(tmp_path / "no.sock")
    recorded = Recorded(nobody, journal, 5, begun=False)
    async with asyncio.timeout(5):
        await recorded.take_rest(cut_off=True)
        await recorded.forget()
    await nobody.aclose()


async def test_records_that_cannot_be_had_now_do_not_fail_the_turn(
    process: Process, line: Gateway, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sidecar.runs.gateway.TRIES", 2)
    journal = Journal.create(tmp_path, request_of(uuid4()))
    recorded = Recorded(line, journal, 0, begun=False)
    await recorded.begin()
    await process.end(signal.SIGKILL)
    await recorded.take_rest(cut_off=True)
    assert journal.last_n == 0


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
