"""A part that dies is started again; a turn loses nothing by it, or says what happened."""

from __future__ import annotations

import asyncio
import os
import signal

from client import Holdfast
from contracts.bodies import Session
from contracts.errors import HoldfastError
from tests.e2e.conftest import RunningStack, of_type, run, wait_for_event


async def crash(stack: RunningStack, part: str) -> None:
    """SIGKILL a part and wait until another process serves in its place."""
    before = await stack.pid_of(part)
    os.kill(before, signal.SIGKILL)
    async with asyncio.timeout(60):
        while True:
            status = await stack.command("status", "--json", check=False)
            pid = await stack.pid_of(part)
            if pid != before and '"state": "ready"' in status.replace('":"', '": "'):
                return
            await asyncio.sleep(0.1)


async def until_answering(hf: Holdfast) -> None:
    async with asyncio.timeout(60):
        while True:
            try:
                if (await hf.ready()).ready:
                    return
            except HoldfastError:
                pass
            await asyncio.sleep(0.1)


async def test_an_api_that_is_restarted_goes_on_with_the_running_turn(
    stack: RunningStack, hf: Holdfast, session: Session
) -> None:
    turn = await hf.turns.start(session.id, "write a to a.txt\nwait 4 seconds\nwrite b to b.txt")
    await wait_for_event(hf, turn, "tool.result")
    await crash(stack, "api")
    await until_answering(hf)
    await wait_for_event(hf, turn, "turn.completed")
    events = [event async for event in hf.events(session.id, follow=False)]
    assert [event.seq for event in events] == list(range(1, len(events) + 1))
    assert len(of_type(events, "tool.call")) == 2, "an event was lost or doubled"
    assert await stack.stored(session, "b.txt") == b"b"


async def test_a_sidecar_that_dies_interrupts_the_turn_and_the_next_one_works(
    stack: RunningStack, hf: Holdfast, session: Session
) -> None:
    turn = await hf.turns.start(session.id, "write a to a.txt\nwait 60 seconds")
    await wait_for_event(hf, turn, "tool.result")
    await crash(stack, "sidecar")
    await wait_for_event(hf, turn, "turn.interrupted")
    events = await run(hf, session, "run: cat a.txt")
    assert events[-1].type == "turn.completed"
    boxes = [box for box in (await hf.sandboxes()).sandboxes if box.session_id == session.id]
    assert len(boxes) == 1, "a rival sandbox"


async def test_a_gateway_that_dies_serves_the_same_session_again(
    stack: RunningStack, hf: Holdfast, session: Session
) -> None:
    await run(hf, session, "say one")
    await crash(stack, "gateway")
    assert (await run(hf, session, "say two"))[-1].type == "turn.completed"
