"""Boxes and mounts held by a box-host, for a sidecar that has no capability and no look at them."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from client import Holdfast
from contracts.bodies import Session
from sidecar.boxhost import processes
from sidecar.boxhost.boxes import Boxes
from tests.e2e.conftest import RunningStack, let_go, of_type, run, wait_for_end, wait_for_event
from tests.e2e.test_recovery import TICKS, boxes_of, crash
from tests.support.box_host_stack import BOX_HOST, running_with_a_box_host
from tests.support.services import short_directory


@pytest.fixture(scope="module")
async def stack(fuse: None, light_settings: dict[str, str]) -> AsyncIterator[RunningStack]:
    with short_directory() as home:
        async with running_with_a_box_host(home, light_settings) as running:
            yield running


def all_boxes(stack: RunningStack) -> Boxes:
    return Boxes(stack.data_dir, stack.data_dir / "unused", Path("unused"))


async def test_a_turn_through_a_sidecar_without_capabilities_has_a_receipt(
    stack: RunningStack, hf: Holdfast, session: Session
) -> None:
    status = Path(f"/proc/{stack.pid_of('sidecar')}/status").read_text()
    assert "CapEff:\t0000000000000000" in status
    events = await run(hf, session, "write hello to a.txt\nrun: cat a.txt")
    assert events[-1].type == "turn.completed"
    assert [receipt.files for receipt in of_type(events, "receipt")] == [1]
    assert of_type(events, "state.captured")
    assert await stack.stored(session, "a.txt") == b"hello"
    assert [box.id for box in all_boxes(stack).all()]
    assert not (stack.data_dir / "sidecar" / "boxes").exists(), "the sidecar keeps boxes itself"
    assert not (stack.data_dir / "sidecar" / "mounts").exists(), "the sidecar mounts itself"


async def test_a_sidecar_that_dies_finds_its_box_with_the_box_host(
    stack: RunningStack, hf: Holdfast, session: Session
) -> None:
    turn = await hf.turns.start(session.id, f"run: {TICKS}\nwrite b to b.txt\nsay two")
    await wait_for_event(hf, turn, "tool.call")
    await crash(stack, "sidecar")
    await let_go(hf, session)
    assert (await wait_for_end(hf, turn)).type == "turn.completed"
    events = [event async for event in hf.events(session.id, follow=False)]
    assert len(of_type(events, "run.adopted")) == 1
    assert len(of_type(events, "tool.call")) == 2, "an event was lost or doubled"
    assert of_type(events, "receipt")
    assert await stack.stored(session, "ticks.txt") == b"ticked\n"
    assert len(await boxes_of(hf, session)) == 1, "a rival sandbox"


async def test_a_box_host_that_dies_in_the_middle_of_a_turn_costs_the_turn_nothing(
    stack: RunningStack, hf: Holdfast, session: Session
) -> None:
    turn = await hf.turns.start(session.id, f"run: {TICKS}\nwrite b to b.txt")
    await wait_for_event(hf, turn, "tool.call")
    (box,) = await boxes_of(hf, session)
    await crash(stack, BOX_HOST)
    await let_go(hf, session)
    assert (await wait_for_end(hf, turn)).type == "turn.completed"
    events = [event async for event in hf.events(session.id, follow=False)]
    assert of_type(events, "receipt")
    assert not of_type(events, "mount.lost"), "the mount outlives the box-host"
    assert await stack.stored(session, "ticks.txt") == b"ticked\n"
    assert [after.sandbox_id for after in await boxes_of(hf, session)] == [box.sandbox_id]


async def test_a_box_host_that_takes_its_boxes_with_it_interrupts_the_turn_with_a_receipt(
    stack: RunningStack, hf: Holdfast, session: Session
) -> None:
    """As a container does: every process in it is gone at once, and its mounts are dead."""
    turn = await hf.turns.start(session.id, "write a to a.txt\nwait 60 seconds")
    await wait_for_event(hf, turn, "tool.result")
    (listed,) = await boxes_of(hf, session)
    box = all_boxes(stack).get(listed.sandbox_id)
    assert box is not None
    record = json.loads((stack.data_dir / "mounts" / f"{session.id}.json").read_text())
    host = stack.pid_of(BOX_HOST)
    os.kill(host, signal.SIGSTOP)  # so that it cannot see them die
    for process in (box.first, box.keeper):
        processes.kill(process)
    os.kill(record["daemon"]["pid"], signal.SIGKILL)
    os.kill(host, signal.SIGKILL)
    assert (await wait_for_end(hf, turn)).type == "turn.interrupted"
    ended = await hf.turns.get(session.id, turn.id)
    assert ended.receipt is not None
    assert ended.receipt.files == 1
    events = await run(hf, session, "run: cat a.txt")
    assert events[-1].type == "turn.completed"
    assert of_type(events, "sandbox.ready")


async def test_the_live_view_and_the_end_of_a_session_go_through_the_box_host(
    stack: RunningStack, hf: Holdfast, session: Session
) -> None:
    await run(hf, session, "write hello to a.txt")
    assert await hf.live.read(session.id, "a.txt") == b"hello"
    await hf.sessions.delete(session.id)
    assert not (stack.data_dir / "mounts" / str(session.id)).exists()
    assert not [b for b in all_boxes(stack).all() if b.labels["session"] == str(session.id)]
