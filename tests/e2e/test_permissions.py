"""`ask`: nothing is written before somebody allows it, whatever dies in between."""

from __future__ import annotations

import asyncio
import contextlib
import os
import pty
from collections.abc import AsyncIterator
from typing import Any

import pytest

from client import Holdfast
from contracts.bodies import Permission, Session, Turn
from contracts.errors import AlreadyAnswered, UnsupportedChoice
from tests.e2e.conftest import RunningStack, of_type, wait_for_end, wait_for_event
from tests.e2e.test_recovery import crash, until_answering
from tests.support.running_stack import HOLDFAST

ASKING = ("claude", "codex", "opencode")


@pytest.fixture(scope="module")
async def asking(stack: RunningStack, request: pytest.FixtureRequest) -> AsyncIterator[Session]:
    """One session for all cases of a harness, which takes long to start; each case has a file of
    its own."""
    async with Holdfast(stack.url, stack.token) as hf:
        made = await hf.sessions.create(harness=request.param, permissions="ask")
        yield made
        await hf.sessions.delete(made.id)


def write(path: str) -> str:
    # codex asks for what its model wants to run outside of codex's own sandbox
    return f"ask to run: printf hello > {path}"


async def asked(hf: Holdfast, turn: Turn) -> Permission:
    """What the turn waits for."""
    event = await wait_for_event(hf, turn, "permission.asked")
    [pending] = await hf.permissions.list(turn.session_id, pending=True)
    assert pending.permission_id == event.permission_id
    return pending


def option(permission: Permission, kind: str) -> str:
    return next(each.option_id for each in permission.options if each.kind == kind)


async def answer(hf: Holdfast, permission: Permission, kind: str) -> Permission:
    chosen = option(permission, kind)
    return await hf.permissions.answer(permission.session_id, permission.permission_id, chosen)


async def of_turn(hf: Holdfast, turn: Turn) -> list[Any]:
    events = hf.events(turn.session_id, follow=False)
    return [event async for event in events if event.turn_id == turn.id]


@pytest.mark.parametrize("asking", ASKING, indirect=True)
async def test_a_file_appears_only_after_it_is_allowed(
    stack: RunningStack, hf: Holdfast, asking: Session
) -> None:
    turn = await hf.turns.start(asking.id, write("allowed.txt"))
    permission = await asked(hf, turn)
    assert "allowed.txt" in f"{permission.title} {permission.input}"
    assert (await hf.sessions.get(asking.id)).state == "waiting"
    assert "allowed.txt" not in [entry.name async for entry in hf.live.list(asking.id)]
    told = await answer(hf, permission, "allow_once")
    assert told.answered_by == "token"
    assert (await wait_for_end(hf, turn)).type == "turn.completed"
    assert await stack.stored(asking, "allowed.txt") == b"hello"
    events = await of_turn(hf, turn)
    [answered] = of_type(events, "permission.answered")
    assert (answered.kind, answered.by) == ("allow_once", "token")
    assert len(of_type(events, "receipt")) == 1
    with pytest.raises(AlreadyAnswered) as refused:
        await answer(hf, permission, "reject_once")
    assert refused.value.details["answered_by"] == "token"


@pytest.mark.parametrize("asking", ASKING, indirect=True)
async def test_nothing_is_written_after_a_reject(
    stack: RunningStack, hf: Holdfast, asking: Session
) -> None:
    turn = await hf.turns.start(asking.id, write("rejected.txt"))
    await answer(hf, await asked(hf, turn), "reject_once")
    assert (await wait_for_end(hf, turn)).type == "turn.completed"
    assert await stack.stored(asking, "rejected.txt") is None
    assert len(of_type(await of_turn(hf, turn), "receipt")) == 1
    # and the harness is none the worse for it
    again = await hf.turns.start(asking.id, write("rejected.txt"))
    await answer(hf, await asked(hf, again), "allow_once")
    assert (await wait_for_end(hf, again)).type == "turn.completed"
    assert await stack.stored(asking, "rejected.txt") == b"hello"


@pytest.mark.parametrize("asking", ASKING, indirect=True)
async def test_what_is_not_asked_for_does_not_happen(
    stack: RunningStack, hf: Holdfast, asking: Session
) -> None:
    """A plain write too: it is asked for, or it fails."""
    turn = await hf.turns.start(asking.id, "write hello to plain.txt")
    async with asyncio.timeout(150):
        async for event in hf.turns.follow(turn):
            if event.type == "permission.asked":
                [pending] = await hf.permissions.list(asking.id, pending=True)
                await answer(hf, pending, "reject_once")
    assert await stack.stored(asking, "plain.txt") is None


@pytest.mark.parametrize("asking", ASKING, indirect=True)
async def test_a_turn_that_is_cancelled_while_it_waits_ends_as_cancelled(
    stack: RunningStack, hf: Holdfast, asking: Session
) -> None:
    turn = await hf.turns.start(asking.id, write("cancelled.txt"))
    await asked(hf, turn)
    await hf.turns.cancel(asking.id, turn.id)
    assert (await wait_for_end(hf, turn)).type == "turn.cancelled"
    [answered] = of_type(await of_turn(hf, turn), "permission.answered")
    assert (answered.by, answered.option_id) == ("cancel", None)
    assert await hf.permissions.list(asking.id, pending=True) == []
    assert await stack.stored(asking, "cancelled.txt") is None


@pytest.mark.parametrize("asking", ASKING, indirect=True)
async def test_a_question_outlives_the_sidecar_and_the_api(
    stack: RunningStack, hf: Holdfast, asking: Session
) -> None:
    turn = await hf.turns.start(asking.id, write("outlived.txt"))
    permission = await asked(hf, turn)
    await crash(stack, "sidecar")
    await crash(stack, "api")
    await until_answering(hf)
    known = [each for each in await hf.permissions.list(asking.id) if each.turn_id == turn.id]
    assert [each.state for each in known] == ["pending"]
    await answer(hf, permission, "allow_once")
    assert (await wait_for_end(hf, turn)).type == "turn.completed"
    assert await stack.stored(asking, "outlived.txt") == b"hello"
    events = await of_turn(hf, turn)
    assert len(of_type(events, "permission.asked")) == 1
    assert len(of_type(events, "permission.answered")) == 1


@pytest.mark.parametrize("asking", ASKING[:1], indirect=True)
async def test_an_answer_given_while_the_sidecar_is_away_reaches_the_harness(
    stack: RunningStack, hf: Holdfast, asking: Session
) -> None:
    turn = await hf.turns.start(asking.id, write("away.txt"))
    permission = await asked(hf, turn)
    crashing = asyncio.create_task(crash(stack, "sidecar"))
    before = stack.pid_of("sidecar")
    async with asyncio.timeout(10):
        while os.path.exists(f"/proc/{before}/exe"):  # noqa: PTH110 - a look at the kernel
            await asyncio.sleep(0.005)
    await answer(hf, permission, "allow_once")
    await crashing
    assert (await wait_for_end(hf, turn)).type == "turn.completed"
    assert await stack.stored(asking, "away.txt") == b"hello"


async def test_pi_cannot_ask_and_says_so(hf: Holdfast) -> None:
    with pytest.raises(UnsupportedChoice):
        await hf.sessions.create(harness="pi", permissions="ask")


@pytest.mark.parametrize("asking", ASKING[:1], indirect=True)
async def test_auto_does_not_wait(stack: RunningStack, hf: Holdfast, asking: Session) -> None:
    """And a harness that asked in the turn before does so no more."""
    turn = await hf.turns.start(asking.id, write("auto.txt"), permissions="auto")
    assert (await wait_for_end(hf, turn)).type == "turn.completed"
    assert await stack.stored(asking, "auto.txt") == b"hello"
    again = await hf.turns.start(asking.id, "ask to run: printf more > b.txt")
    await answer(hf, await asked(hf, again), "allow_once")
    assert (await wait_for_end(hf, again)).type == "turn.completed"
    assert await stack.stored(asking, "b.txt") == b"more"


async def test_run_ask_prompts_in_the_terminal(stack: RunningStack, hf: Holdfast) -> None:
    master, slave = pty.openpty()
    process = await asyncio.create_subprocess_exec(
        *(HOLDFAST, "run", "--ask", "--harness", "claude", write("a.txt")),
        stdin=slave,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env=stack.env,
    )
    os.close(slave)
    assert process.stdout is not None
    output = b""
    try:
        async with asyncio.timeout(150):
            while b"answer 1-" not in output:
                piece = await process.stdout.read(4096)
                assert piece, output.decode()
                output += piece
            options = [line for line in output.decode().splitlines() if line.startswith("    ")]
            number = next(line.split()[0] for line in options if "allow" in line.lower())
            os.write(master, f"nonsense\n{number}\n".encode())
            output += await process.stdout.read()
            assert await process.wait() == 0, output.decode()
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        os.close(master)
    assert "by cli" in output.decode()
    session = await hf.sessions.resolve(output.decode().split("session ", 1)[1].split()[0])
    assert await stack.stored(session, "a.txt") == b"hello"
    await hf.sessions.delete(session.id)
