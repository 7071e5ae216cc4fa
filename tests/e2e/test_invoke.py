"""`POST /invoke`: send, steer, cancel, attach."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

import pytest

from client import Holdfast
from contracts.bodies import Session
from contracts.errors import NoTurnRunning, TurnRunning
from tests.e2e.conftest import RunningStack, of_type, wait_for_event
from tests.support.light_agent.tree import LIGHT


async def test_a_prompt_without_a_session_makes_one_and_streams_the_turn(
    stack: RunningStack, hf: Holdfast
) -> None:
    events = [event async for event in hf.invoke("write x to x.txt", **LIGHT)]
    assert events[0].type == "turn.started"
    assert events[-1].type == "turn.completed"
    assert events[0].session_id is not None
    session = await hf.sessions.get(events[0].session_id)
    assert await stack.stored(session, "x.txt") == b"x"
    await hf.sessions.delete(session.id)


async def test_a_running_turn_is_a_409_is_steered_attached_to_and_cancelled(
    hf: Holdfast, session: Session
) -> None:
    first = await hf.turns.start(session.id, "wait 60 seconds")
    with pytest.raises(TurnRunning):
        async for _ in hf.invoke("say x", session_id=session.id):
            pass
    steered = [e async for e in hf.invoke("say steered", session_id=session.id, force=True)]
    assert steered[-1].type == "turn.completed"
    assert (await hf.turns.get(session.id, first.id)).state == "cancelled"

    second = await hf.turns.start(session.id, "wait 60 seconds")
    async with asyncio.timeout(60), aclosing(hf.invoke(session_id=session.id, force=True)) as it:
        attached = await anext(it)
    assert (attached.type, attached.turn_id) == ("turn.started", second.id)
    await wait_for_event(hf, second, "resume")
    assert (await hf.turns.get(session.id, second.id)).state == "running", "detaching ended it"
    ended = [event async for event in hf.invoke(session_id=session.id)]
    assert of_type(ended, "turn.cancelled")
    with pytest.raises(NoTurnRunning):
        async for _ in hf.invoke(session_id=session.id):
            pass
