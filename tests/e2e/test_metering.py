"""What turns use of a model: counted at the gateway, told once, held to a budget; and a model that
fails its turn fails it, whatever the harness says."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from client import Holdfast
from contracts.bodies import Budget, Session, Totals, Turn
from contracts.events import Event
from tests.e2e.conftest import (
    UNTIL_LET_GO,
    RunningStack,
    let_go,
    of_type,
    run,
    wait_for_end,
    wait_for_event,
    with_each_harness,
)
from tests.e2e.test_recovery import TICKS, crash, until_answering
from tests.support.light_agent.tree import LIGHT


async def all_events(hf: Holdfast, session: Session) -> list[Event]:
    return [event async for event in hf.events(session.id, follow=False)]


async def until_said(hf: Holdfast, turn: Turn, words: str) -> None:
    """Until the assistant has said this: its request is on its way."""
    said = ""
    async with asyncio.timeout(60):
        async for event in hf.events(turn.session_id, after=turn.first_seq - 1):
            if event.type == "message" and event.role == "assistant":
                said += event.text
            if words in said:
                return


def added(events: list[Event]) -> tuple[int, int, int]:
    """Requests, tokens in, tokens out."""
    used = of_type(events, "usage")
    return (
        len(used),
        sum(event.input_tokens for event in used),
        sum(event.output_tokens for event in used),
    )


def of(totals: Totals) -> tuple[int, int, int]:
    return totals.requests, totals.input_tokens, totals.output_tokens


def noted(stack: RunningStack, session: Session) -> dict[str, Any]:
    """What the gateway itself knows of a session: its last state, and what came after that."""
    path = stack.layout.gateway_sessions / ".records" / f"{session.id}.ndjson"
    spent, waiting = {"tokens": 0}, 0
    for line in path.read_text().splitlines():
        plain = json.loads(line)
        if "state" in plain:
            spent = plain["state"]["spent"]
        for record in plain.get("records", [plain] if "kind" in plain else []):
            waiting += 1
            if record["kind"] == "usage":
                data = record["data"]
                spent["tokens"] += data["input_tokens"] + data["output_tokens"]
        if "taken" in plain:
            waiting = 0
    return {"tokens": spent["tokens"], "waiting": waiting}


@with_each_harness
async def test_every_request_is_told_once_and_adds_up(
    hf: Holdfast, harness_session: Session
) -> None:
    session = harness_session
    earlier = await all_events(hf, session)
    first = await run(hf, session, "write a to a.txt\nsay done")
    assert first[-1].type == "turn.completed"
    assert added(first)[0] >= 2, "one request for the tool, one for the answer"
    assert all(event.outcome == "completed" for event in of_type(first, "usage")), first
    assert all(event.cost == 0 for event in of_type(first, "usage"))
    second = await run(hf, session, "say more")
    turns = [turn async for turn in hf.turns.list(session.id)]
    assert [of(turn.usage) for turn in turns[-2:]] == [added(first), added(second)]
    total = (await hf.sessions.get(session.id)).usage
    assert of(total) == added([*earlier, *first, *second])
    assert (total.cost, total.unpriced) == (0.0, 0)


@with_each_harness
async def test_what_a_cancelled_turn_used_is_counted(
    hf: Holdfast, harness_session: Session
) -> None:
    session = harness_session
    turn = await hf.turns.start(session.id, "write a to a.txt\nwait 60 seconds")
    await until_said(hf, turn, "tick 2 ")
    await hf.turns.cancel(session.id, turn.id)
    assert (await wait_for_end(hf, turn)).type == "turn.cancelled"
    events = [event for event in await all_events(hf, session) if event.turn_id == turn.id]
    cut = [event for event in of_type(events, "usage") if event.outcome == "cut"]
    assert len(cut) == 1, of_type(events, "usage")
    assert cut[0].estimated
    assert cut[0].input_tokens > 0
    assert of((await hf.turns.get(session.id, turn.id)).usage) == added(events)


async def test_what_a_turn_used_whose_sandbox_was_killed_is_counted(
    hf: Holdfast, session: Session
) -> None:
    turn = await hf.turns.start(session.id, "write a to a.txt\nwait 60 seconds")
    await until_said(hf, turn, "tick 2 ")
    await hf.sessions.kill(session.id)
    assert (await wait_for_end(hf, turn)).type == "turn.interrupted"
    outcomes = [event.outcome for event in of_type(await all_events(hf, session), "usage")]
    assert outcomes == ["completed", "cut"]


@pytest.mark.parametrize("part", ["sidecar", "api"])
async def test_a_part_that_dies_neither_loses_nor_doubles_what_was_used(
    stack: RunningStack, hf: Holdfast, session: Session, part: str
) -> None:
    await run(hf, session, "say hello")
    turn = await hf.turns.start(session.id, f"write a to a.txt\nrun: {TICKS}\nwrite b to b.txt")
    await wait_for_event(hf, turn, "usage")
    await crash(stack, part)
    await until_answering(hf)
    await let_go(hf, session)
    await wait_for_event(hf, turn, "turn.completed")
    total = (await hf.sessions.get(session.id)).usage
    assert of(total) == added(await all_events(hf, session))
    assert total.requests == 1 + 4
    known = noted(stack, session)
    assert known["tokens"] == total.input_tokens + total.output_tokens
    async with asyncio.timeout(10):
        while noted(stack, session)["waiting"]:  # it is told after the turn's end
            await asyncio.sleep(0.05)


@with_each_harness
async def test_a_turn_whose_model_fails_has_failed_and_says_how(
    hf: Holdfast, harness_session: Session
) -> None:
    session = harness_session
    events = await run(hf, session, "fail with 400")
    assert events[-1].type == "turn.failed", events[-1]
    error = events[-1].error
    assert error.code == "model_failed"
    assert "(400)" in error.message
    assert "asked the scripted model to fail with 400" in error.message
    assert {event.status for event in of_type(events, "model.failed")} == {400}
    after = await run(hf, session, "write fine to fine.txt")
    assert after[-1].type == "turn.completed"


@with_each_harness
async def test_a_model_that_fails_after_it_worked_fails_the_turn_too(
    stack: RunningStack, hf: Holdfast, harness_session: Session
) -> None:
    session = harness_session
    events = await run(hf, session, "write kept to kept.txt\nfail with 400")
    assert events[-1].type == "turn.failed"
    assert events[-1].error.code == "model_failed"
    assert of_type(events, "receipt"), "what it had done is proven all the same"
    assert await stack.stored(session, "kept.txt") == b"kept"


async def test_a_gateway_that_dies_in_the_middle_of_an_answer_fails_a_turn_that_goes_by_it(
    stack: RunningStack, hf: Holdfast, pi_session: Session
) -> None:
    session = pi_session
    turn = await hf.turns.start(session.id, "write a to a.txt\nwait 60 seconds")
    await until_said(hf, turn, "tick 2 ")
    await crash(stack, "gateway")
    end = await wait_for_end(hf, turn)
    # pi calls it done
    assert (end.type, end.error.code) == ("turn.failed", "model_failed")
    assert "restarted in the middle" in end.error.message
    assert (await run(hf, session, "say fine"))[-1].type == "turn.completed"


@with_each_harness
async def test_a_spent_budget_ends_the_turn_until_it_is_raised(
    stack: RunningStack, hf: Holdfast, harness_session: Session
) -> None:
    session = harness_session
    used = (await hf.sessions.get(session.id)).usage
    tokens = used.input_tokens + used.output_tokens + 1
    await hf.sessions.set_budget(session.id, Budget(tokens=tokens))
    first = await run(hf, session, "write a to a.txt\nsay done")
    assert first[-1].type == "turn.failed"
    assert first[-1].error.code == "budget_spent"
    assert f"of {tokens:,} tokens" in first[-1].error.message
    assert "holdfast budget" in first[-1].error.hint
    assert added(first)[0] >= 1, "the request that went beyond was still let through"
    await crash(stack, "gateway")
    second = await run(hf, session, "say hello")
    assert second[-1].type == "turn.failed", "what was spent is not forgotten"
    assert second[-1].error.code == "budget_spent"
    assert added(second) == (0, 0, 0)
    assert await hf.sessions.set_budget(session.id, Budget(tokens=10**9))
    third = await run(hf, session, "write b to b.txt")
    assert third[-1].type == "turn.completed", third[-1]
    assert (await hf.sessions.set_budget(session.id, None)).budget is None


async def test_a_budget_that_is_raised_while_a_turn_runs_holds_for_it(
    hf: Holdfast,
) -> None:
    session = await hf.sessions.create(**LIGHT, budget=Budget(tokens=1))
    turn = await hf.turns.start(session.id, f"run: {UNTIL_LET_GO}\nwrite a to a.txt")
    await wait_for_event(hf, turn, "tool.call")  # the first request has spent it
    await hf.sessions.set_budget(session.id, None)
    await let_go(hf, session)
    assert (await wait_for_end(hf, turn)).type == "turn.completed"
    await hf.sessions.delete(session.id)
