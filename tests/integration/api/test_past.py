"""What a run is told of the turns before it: bounded, in order, and true about what is left out."""

from __future__ import annotations

from uuid import UUID

import pytest
from uuid_utils.compat import uuid7

from api import past as past_module
from api.db import past, sessions, turns
from api.db.pool import Database
from api.db.turns import RunningTurn
from api.grants import begin
from api.lines import Numbered
from api.past import past_of
from api.record import Carried, record
from contracts.bodies import PastTurn, RunRequest
from contracts.events import (
    ErrorInfo,
    Event,
    Message,
    Plan,
    Thought,
    ToolCall,
    ToolResult,
    TurnCompleted,
    TurnFailed,
)
from tests.integration.api.test_transcript import HOLDER, new_session
from tests.support.api import rows
from tests.support.api.fault_injector import planned, short_run
from tests.support.api.serving import Api


async def next_turn(database: Database, session_id: UUID, prompt: str = "go") -> RunningTurn:
    turn_id = uuid7()
    async with database.transaction() as conn:
        locked = await sessions.lock(conn, session_id)
        assert locked is not None
        how = (prompt, "claude", "local", None, None)
        new = turns.NewTurn(turn_id, session_id, *how, "auto")
        await turns.insert(conn, new, locked.last_seq + 1)
        return await begin(conn, session_id, turn_id, locked, HOLDER)


async def ran(
    database: Database, session_id: UUID, prompt: str, *events: Event, batch: int = 1000
) -> RunningTurn:
    turn = await next_turn(database, session_id, prompt)
    carried = Carried(turn.id, turn.lease_epoch)
    lines = [Numbered(n, event) for n, event in enumerate(events, start=1)]
    for start in range(0, len(lines), batch):
        await record(database, carried, lines[start : start + batch])
    return turn


def said(text: str) -> Message:
    return Message(role="assistant", text=text)


async def told(database: Database, session_id: UUID) -> tuple[list[PastTurn], int]:
    """What a turn that starts now would be told; it goes over the wire as it is."""
    turn = await next_turn(database, session_id)
    found, before = await past_of(database, turn)
    await record(database, Carried(turn.id, turn.lease_epoch), [Numbered(1, TurnCompleted())])
    for each in found:
        PastTurn.model_validate_json(each.model_dump_json())
    return found, before


async def test_a_past_turn_says_what_was_asked_done_and_answered(database: Database) -> None:
    session_id = await new_session(database)
    error = ErrorInfo(code="x", message="it broke \ud800")
    first = await ran(
        database,
        session_id,
        "make \0 a thing",
        Thought(text="hidden"),
        said("I "),
        ToolCall(tool_call_id="1", title="Write a.txt", paths=["a.txt"]),
        ToolResult(
            tool_call_id="1",
            status="completed",
            output="secret output",
            paths=["a.txt", "b.txt"],
            diffs=[{"path": "c.txt", "old": "", "new": "x"}, "odd"],
        ),
        Plan(entries=[{"content": "old"}]),
        Plan(entries=[{"content": "new", "status": "pending"}, "odd"]),
        said("did \ud800 it"),
        TurnFailed(error=error),
    )
    await ran(database, session_id, "second", said("ok"), TurnCompleted())
    found, before = await told(database, session_id)
    assert before == 2
    assert [turn.prompt for turn in found] == ["make \0 a thing", "second"]
    assert found[0] == PastTurn(
        turn_id=first.id,
        epoch=1,
        harness="claude",
        state="failed",
        prompt="make \0 a thing",
        said="I did \ufffd it",
        tools=["Write a.txt"],
        paths=["a.txt", "b.txt", "c.txt"],
        plan=[{"content": "new", "status": "pending"}],
        error="it broke \ufffd",
        cut=False,
    )
    assert (found[1].said, found[1].error, found[1].cut) == ("ok", None, False)


async def test_what_is_long_is_cut_and_said_to_be(database: Database) -> None:
    session_id = await new_session(database)
    prompt = 'ü"\\\n🙂' * 5_000
    calls: list[Event] = [
        ToolCall(tool_call_id=str(n), title=f"tool {n}", paths=[f"p{n}", f"q{n}"])
        for n in range(90)
    ]
    await ran(
        database, session_id, prompt, said("a" * 5_000), *calls, said("b" * 7_000), TurnCompleted()
    )
    (turn,), _ = await told(database, session_id)
    assert turn.cut
    assert turn.prompt == prompt[:4_000]
    assert turn.said == "a" * 1_000 + "b" * 7_000
    assert turn.tools == [f"tool {n}" for n in range(50, 90)]
    assert turn.paths == [name for n in range(40, 90) for name in (f"p{n}", f"q{n}")]


async def test_the_last_twenty_turns_are_told_oldest_first(database: Database) -> None:
    session_id = await new_session(database)
    for number in range(23):
        await ran(database, session_id, f"prompt {number}", TurnCompleted())
    found, before = await told(database, session_id)
    assert [turn.prompt for turn in found] == [f"prompt {number}" for number in range(3, 23)]
    assert before == 23
    assert [turn.epoch for turn in found] == sorted(turn.epoch for turn in found)


async def test_when_it_is_too_much_the_oldest_are_left_out(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(past_module, "PAST_BYTES", 20_000)
    session_id = await new_session(database)
    for number in range(5):
        await ran(database, session_id, f"prompt {number}", said("x" * 7_000), TurnCompleted())
    found, before = await told(database, session_id)
    assert [turn.prompt for turn in found] == ["prompt 3", "prompt 4"]
    assert before == 5


async def test_only_the_newest_events_of_a_turn_are_looked_at(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(past, "NEWEST_EVENTS", 10)
    session_id = await new_session(database)
    words = [said(f"{number} ") for number in range(30)]
    await ran(database, session_id, "go", *words, TurnCompleted())
    (turn,), _ = await told(database, session_id)
    assert turn.said == "".join(f"{number} " for number in range(21, 30))
    assert turn.cut


async def test_a_turn_of_100_000_events_costs_what_its_newest_do(database: Database) -> None:
    session_id = await new_session(database)
    words: list[Event] = [Thought(text="hm " * 30)] * 100_000
    await ran(database, session_id, "go", *words, said("done"), TurnCompleted(), batch=10_000)
    turn = await next_turn(database, session_id)
    async with database.connection() as conn:
        text = await rows.explain(
            conn,
            past.LAST,
            session_id,
            turn.epoch,
            100,
            past.PAST_TURNS,
            past.NEWEST_EVENTS,
            past.EVENT_BYTES,
            past.MESSAGE_BYTES,
            past.TURN_BYTES,
        )
    scans = [line for line in text.splitlines() if " on events" in line]
    assert len(scans) == 1, text
    assert "Index Scan Backward" in scans[0], text
    assert f"rows={past.NEWEST_EVENTS}" in scans[0].partition("actual")[2], text


async def test_a_run_is_handed_over_with_its_past_and_once(api: Api) -> None:
    session = await api.new_session()
    with planned(api.injector, lambda run: run.journal.extend(short_run("the answer"))):
        first = await api.ended(await api.start(session.id, "the question"))
        second = await api.ended(await api.start(session.id, "and then?"))
    requests: list[RunRequest] = [api.injector.runs[turn.id].request for turn in (first, second)]
    assert (requests[0].past, requests[0].turns_before) == ([], 0)
    assert requests[1].turns_before == 1
    (told_of,) = requests[1].past
    assert (told_of.turn_id, told_of.prompt) == (first.id, "the question")
    assert told_of.said == "the answer"
