"""The conversation survives the sandbox, and a change of harness: the model is asked what it was
told before, and only what reached it in this turn's request can be its answer."""

from __future__ import annotations

import itertools
import json
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from client import Holdfast
from contracts.bodies import Session
from contracts.events import Event
from sidecar.harnesses.base import SCRIPTED_MODEL
from tests.e2e.conftest import (
    CODEX,
    HARNESSES,
    RunningStack,
    of_type,
    run,
    wait_for_event,
    with_each_harness,
)
from tests.support.light_agent.tree import LIGHT

ORDERS = (HARNESSES, HARNESSES[::-1])
PAIRS = list(itertools.permutations(HARNESSES, 2))


def said(events: list[Event]) -> str:
    return "".join(m.text for m in of_type(events, "message") if m.role == "assistant")


def rung(events: list[Event]) -> str:
    (resume,) = of_type(events, "resume")
    return str(resume.rung)


class HandedOn:
    """Two sessions that go from one harness to the next, each in an order of its own. A harness
    comes once in each, so that every pair is in one of them: starting it takes long."""

    def __init__(self, hf: Holdfast) -> None:
        self._hf = hf
        self._sessions: dict[tuple[str, ...], Session] = {}
        self._turns: dict[tuple[str, ...], dict[str, list[Event]]] = {}

    async def turn(self, first: str, then: str) -> list[Event]:
        """The turn of `then` in the session in which `first` had one before."""
        order = next(each for each in ORDERS if each.index(first) < each.index(then))
        if order not in self._sessions:
            self._sessions[order] = await self._hf.sessions.create(harness=order[0])
            self._turns[order] = {}
        done = self._turns[order]
        for harness in order[len(done) : order.index(then) + 1]:
            prompt = "recall\nread sea.txt" if done else "write sea to sea.txt"
            prompt += f"\nremember the colour of {harness}"
            done[harness] = await run(self._hf, self._sessions[order], prompt, harness=harness)
        return done[then]

    async def end(self) -> None:
        for session in self._sessions.values():
            await self._hf.sessions.delete(session.id)


@pytest.fixture(scope="module")
async def handed_on(stack: RunningStack) -> AsyncIterator[HandedOn]:
    async with Holdfast(stack.url, stack.token) as hf:
        made = HandedOn(hf)
        yield made
        await made.end()


@pytest.mark.parametrize(("first", "then"), PAIRS, ids=["-".join(pair) for pair in PAIRS])
async def test_another_harness_knows_what_was_said(
    handed_on: HandedOn, first: str, then: str
) -> None:
    events = await handed_on.turn(first, then)
    assert rung(events) == "handoff"
    assert f"remember the colour of {first}" in said(events)
    assert events[-1].type == "turn.completed"


async def test_switching_back_brings_both_its_own_memory_and_what_happened_since(
    hf: Holdfast, session: Session
) -> None:
    await run(hf, session, "remember the colour teal")
    await run(hf, session, "remember the number seven", **CODEX)
    await hf.sessions.kill(session.id)
    events = await run(hf, session, "recall", **LIGHT)
    (resume,) = of_type(events, "resume")
    assert resume.rung == "native"
    assert "turn 2" in resume.carried
    assert "remember the colour teal" in said(events)
    assert "remember the number seven" in said(events)


async def test_a_warm_harness_is_told_what_another_one_did_meanwhile(
    hf: Holdfast, session: Session
) -> None:
    await run(hf, session, "say hello")
    await run(hf, session, "remember the number seven", **CODEX)
    events = await run(hf, session, "recall", **LIGHT)
    assert rung(events) == "warm"
    assert "remember the number seven" in said(events)


@with_each_harness
async def test_a_turn_that_was_cut_off_by_a_kill_is_told_to_the_harness(
    hf: Holdfast, harness_session: Session
) -> None:
    session = harness_session
    await run(hf, session, "remember the colour amber")
    prompt = "remember the number seven\nwrite a to a.txt\nwait 60 seconds"
    turn = await hf.turns.start(session.id, prompt)
    await wait_for_event(hf, turn, "tool.result")
    await hf.sessions.kill(session.id)
    await wait_for_event(hf, turn, "turn.interrupted")
    events = await run(hf, session, "recall")
    assert rung(events) == "native"
    assert "remember the colour amber" in said(events)
    assert "remember the number seven" in said(events)
    assert "cut off before its end" in said(events)


@with_each_harness
async def test_a_harness_killed_in_the_middle_of_a_tool_comes_back_in_the_same_sandbox(
    stack: RunningStack, hf: Holdfast, harness_session: Session
) -> None:
    session = harness_session
    await run(hf, session, "remember the colour olive")
    turn = await hf.turns.start(session.id, "run: echo begun > begun.txt; sleep 30; echo end")
    await wait_for_event(hf, turn, "tool.call")
    kill_harness(stack, session)
    await wait_for_event(hf, turn, "turn.interrupted")
    events = await run(hf, session, "recall")
    assert rung(events) in ("native", "repaired")
    assert of_type(events, "sandbox.attached"), "the sandbox had not died"
    assert "remember the colour olive" in said(events)


async def test_a_harness_whose_adapter_died_writes_nothing_behind_the_receipt(
    stack: RunningStack, hf: Holdfast, session: Session
) -> None:
    prompt = "run: sleep 3\nwrite late to late.txt\nwait 60 seconds"
    turn = await hf.turns.start(session.id, prompt, harness="claude", model=SCRIPTED_MODEL)
    await wait_for_event(hf, turn, "tool.call")
    kill_harness(stack, session, named=b"claude-agent-acp")
    await wait_for_event(hf, turn, "turn.interrupted")
    assert harness_processes(stack, session) == {}, "it goes on with the turn"


def kill_harness(stack: RunningStack, session: Session, named: bytes = b"") -> None:
    """SIGKILL the harness and its adapter, or of them the one with this name."""
    for pid, argv in harness_processes(stack, session).items():
        if named in argv:
            os.kill(pid, signal.SIGKILL)


def harness_processes(stack: RunningStack, session: Session) -> dict[int, bytes]:
    """The harness and its adapter in the session's box, as the host sees them."""
    (record,) = (stack.data_dir / "boxes").glob(f"{session.id}-*/box.json")
    namespace = f"pid:[{json.loads(record.read_text())['pid_namespace']}]"
    found = {}
    for entry in Path("/proc").iterdir():
        try:
            if not entry.name.isdigit() or str((entry / "ns/pid").readlink()) != namespace:
                continue
            argv = (entry / "cmdline").read_bytes()
        except OSError:
            continue
        harness = b"/opt/harness/" in argv or argv.rstrip(b"\0") == b"pi"
        if harness and b"sandbox-agent" not in argv:
            found[int(entry.name)] = argv
    return found
