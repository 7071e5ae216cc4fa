"""A part that dies is started again; a turn loses nothing by it, or says what happened."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from uuid import uuid4

from client import Holdfast
from contracts.bodies import SandboxBody, Session
from contracts.errors import HoldfastError
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

# longer than a part takes to come back, so that there is something left to hear
TICKS = f"echo tick; {UNTIL_LET_GO}; echo ticked > ticks.txt"


async def boxes_of(hf: Holdfast, session: Session) -> list[SandboxBody]:
    return [box for box in (await hf.sandboxes()).sandboxes if box.session_id == session.id]


async def crash(stack: RunningStack, part: str, how: int = signal.SIGKILL) -> None:
    """End a part and wait until another process serves in its place."""
    before = stack.pid_of(part)
    os.kill(before, how)
    async with asyncio.timeout(120):
        while True:
            now = stack.part(part)
            if now.pid not in (before, None) and now.state == "ready":
                return
            await asyncio.sleep(0.02)


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
    prompt = f"write a to a.txt\nrun: {UNTIL_LET_GO}\nwrite b to b.txt"
    turn = await hf.turns.start(session.id, prompt)
    await wait_for_event(hf, turn, "tool.result")
    await crash(stack, "api")
    await until_answering(hf)
    await let_go(hf, session)
    await wait_for_event(hf, turn, "turn.completed")
    events = [event async for event in hf.events(session.id, follow=False)]
    assert [event.seq for event in events] == list(range(1, len(events) + 1))
    assert len(of_type(events, "tool.call")) == 3, "an event was lost or doubled"
    assert await stack.stored(session, "b.txt") == b"b"


@with_each_harness
async def test_a_sidecar_that_dies_is_followed_by_one_that_goes_on_with_the_turn(
    stack: RunningStack, hf: Holdfast, harness_session: Session
) -> None:
    session = harness_session
    prompt = f"say one\nrun: {TICKS}\nwrite b to adopted.txt\nsay two"
    turn = await hf.turns.start(session.id, prompt)
    await wait_for_event(hf, turn, "tool.call")
    await crash(stack, "sidecar")
    await let_go(hf, session)
    await wait_for_event(hf, turn, "turn.completed")
    events = [event async for event in hf.events(session.id, follow=False)]
    assert [event.seq for event in events] == list(range(1, len(events) + 1))
    events = [event for event in events if event.turn_id == turn.id]
    assert len(of_type(events, "run.adopted")) == 1
    assert len(of_type(events, "tool.call")) == 2, "an event was lost or doubled"
    assert len(of_type(events, "tool.result")) == 2, "an event was lost or doubled"
    said = "".join(event.text for event in of_type(events, "message"))
    assert said.count("Done:") == 1
    assert of_type(events, "receipt")
    assert await stack.stored(session, "ticks.txt") == b"ticked\n"
    assert await stack.stored(session, "adopted.txt") == b"b"
    assert len(await boxes_of(hf, session)) == 1, "a rival sandbox"


async def test_a_sandbox_that_dies_while_the_sidecar_is_away_interrupts_the_turn_with_a_receipt(
    stack: RunningStack, hf: Holdfast, session: Session
) -> None:
    turn = await hf.turns.start(session.id, "write a to a.txt\nwait 60 seconds")
    await wait_for_event(hf, turn, "tool.result")
    (box,) = await boxes_of(hf, session)
    record = json.loads((stack.data_dir / "boxes" / box.sandbox_id / "box.json").read_text())
    sidecar = stack.pid_of("sidecar")
    os.kill(sidecar, signal.SIGSTOP)  # so that it cannot see the sandbox die
    os.kill(record["first"]["pid"], signal.SIGKILL)
    os.kill(sidecar, signal.SIGKILL)
    await wait_for_event(hf, turn, "turn.interrupted")
    ended = await hf.turns.get(session.id, turn.id)
    assert ended.receipt is not None
    assert ended.receipt.files == 1
    events = await run(hf, session, "recall")
    assert events[-1].type == "turn.completed"
    assert "cut off before its end" in "".join(e.text for e in of_type(events, "message"))


async def test_a_sidecar_that_is_stopped_cleanly_leaves_its_turns_to_the_next_one(
    stack: RunningStack, hf: Holdfast, session: Session
) -> None:
    turn = await hf.turns.start(session.id, f"run: {TICKS}\nwrite b to b.txt")
    await wait_for_event(hf, turn, "tool.call")
    await crash(stack, "sidecar", signal.SIGTERM)
    await let_go(hf, session)
    await wait_for_event(hf, turn, "turn.completed")
    log = (stack.data_dir / "logs" / "sidecar.log").read_text()
    assert "timeout graceful shutdown exceeded" not in log, "it waited for the open stream"
    events = [event async for event in hf.events(session.id, follow=False)]
    assert len(of_type(events, "run.adopted")) == 1
    assert await stack.stored(session, "b.txt") == b"b"


async def test_a_run_that_cannot_be_read_does_not_keep_the_sidecar_from_starting(
    stack: RunningStack, hf: Holdfast, session: Session
) -> None:
    torn = stack.data_dir / "runs" / f"{uuid4()}.ndjson"
    torn.touch()
    await crash(stack, "sidecar")
    assert (await run(hf, session, "say hello"))[-1].type == "turn.completed"
    assert not torn.exists()
    torn.with_name(f"{torn.name}.broken").unlink()


async def test_a_gateway_that_dies_serves_the_same_session_again(
    stack: RunningStack, hf: Holdfast, session: Session
) -> None:
    await run(hf, session, "say one")
    await crash(stack, "gateway")
    assert (await run(hf, session, "say two"))[-1].type == "turn.completed"


async def test_a_store_that_is_away_in_the_middle_of_a_turn_costs_time_and_nothing_else(
    stack: RunningStack, hf: Holdfast, session: Session
) -> None:
    turn = await hf.turns.start(session.id, "write a to a.txt\nwait 4 seconds\nwrite b to b.txt")
    await wait_for_event(hf, turn, "tool.result")
    await crash(stack, "seaweedfs")
    end = await wait_for_end(hf, turn)
    ended = await hf.turns.get(session.id, turn.id)
    assert (end.type, ended.not_durable) == ("turn.completed", None)
    assert await stack.stored(session, "a.txt") == b"a"
    assert await stack.stored(session, "b.txt") == b"b"


async def test_a_mount_that_dies_in_the_middle_of_a_turn_is_mounted_anew(
    stack: RunningStack, hf: Holdfast, session: Session
) -> None:
    prompt = f"write a to a.txt\nrun: {UNTIL_LET_GO}\nwrite b to b.txt"
    turn = await hf.turns.start(session.id, prompt)
    await wait_for_event(hf, turn, "tool.result")
    record = json.loads((stack.data_dir / "mounts" / f"{session.id}.json").read_text())
    os.kill(record["daemon"]["pid"], signal.SIGKILL)
    lost = await wait_for_event(hf, turn, "mount.lost")
    assert "ENOTCONN" in lost.reason
    await wait_for_event(hf, turn, "mount.restored")
    await let_go(hf, session)
    end = await wait_for_end(hf, turn)
    assert end.type == "turn.completed"
    assert await stack.stored(session, "a.txt") == b"a"
    assert await stack.stored(session, "b.txt") == b"b"
    assert (await run(hf, session, "run: cat a.txt b.txt"))[-1].type == "turn.completed"
