"""A durable turn with each of the four real harnesses."""

from __future__ import annotations

import asyncio
import uuid
from pathlib import Path

import pytest

from client import Holdfast
from contracts.bodies import Session
from sidecar.boxhost import processes
from sidecar.boxhost.boxes import Boxes
from sidecar.boxhost.mounts import Mounts
from sidecar.harnesses.base import SCRIPTED_MODEL
from tests.e2e.conftest import (
    RunningStack,
    of_type,
    output,
    run,
    wait_for_event,
    with_each_harness,
)

# What runs a harness itself, not its adapter.
PROGRAMS = {"claude": "/claude", "codex": "/codex", "opencode": "/opencode", "pi": "pi"}


@with_each_harness
async def test_cancel_leaves_no_process_of_the_tool_and_the_next_turn_works(
    hf: Holdfast, harness_session: Session
) -> None:
    session = harness_session
    marker = f"60.{uuid.uuid4().int % 10**9}"
    turn = await hf.turns.start(session.id, f"run: echo started; sleep {marker}; echo late")
    await wait_for_event(hf, turn, "tool.call")
    await until_sleeping(marker)
    await hf.turns.cancel(session.id, turn.id)
    end = await wait_for_event(hf, turn, "turn.cancelled")
    assert end.reason
    assert not await sleeping(marker)
    after = await run(hf, session, "run: echo again-$((6*7)); ls -A ~")
    assert "again-42" in output(after)
    assert ".npm" not in output(after).split(), "the harness installs packages when it starts"


async def sleeping(marker: str) -> bool:
    process = await asyncio.create_subprocess_exec(
        "pgrep", "-x", "-f", f"sleep {marker}", stdout=asyncio.subprocess.DEVNULL
    )
    return await process.wait() == 0


async def until_sleeping(marker: str) -> None:
    async with asyncio.timeout(30):
        while not await sleeping(marker):
            await asyncio.sleep(0.05)


async def test_another_model_is_taken_for_the_next_turn(hf: Holdfast, session: Session) -> None:
    await run(hf, session, "remember limpet", model="light-1")
    events = await run(hf, session, "recall", model="light-2")
    assert events[-1].type == "turn.completed"
    assert [event.rung for event in of_type(events, "resume")] == ["native"]
    assert "limpet" in "".join(event.text for event in of_type(events, "message"))


async def test_a_mount_daemon_that_dies_is_said_and_mended(
    stack: RunningStack, hf: Holdfast, session: Session
) -> None:
    await run(hf, session, "write one to one.txt")
    await kill_mount_daemon(stack, session)
    events = await run(hf, session, "write two to two.txt")
    assert events[-1].type == "turn.completed"
    assert of_type(events, "mount.lost")
    assert of_type(events, "mount.restored")
    [receipt] = of_type(events, "receipt")
    assert "mount died" in receipt.lost
    assert await stack.stored(session, "one.txt") == b"one"
    assert await stack.stored(session, "two.txt") == b"two"


async def test_another_harness_starts_in_a_box_whose_workspace_was_mounted_anew(
    stack: RunningStack, hf: Holdfast, session: Session
) -> None:
    await run(hf, session, "write a to a.txt")
    await kill_mount_daemon(stack, session)
    events = await run(hf, session, "run: cat a.txt", harness="claude", model=SCRIPTED_MODEL)
    assert of_type(events, "mount.restored")
    assert events[-1].type == "turn.completed", events[-1]


async def kill_mount_daemon(stack: RunningStack, session: Session) -> None:
    mount = Mounts(stack.data_dir).get(str(session.id))
    assert mount is not None
    assert processes.kill(mount.daemon)
    assert await processes.wait_gone(mount.daemon, 10)


async def test_a_sandbox_killed_in_the_middle_interrupts_the_turn_and_keeps_its_events(
    stack: RunningStack, hf: Holdfast, session: Session
) -> None:
    turn = await hf.turns.start(session.id, "write kept to kept.txt\nwait 60 seconds")
    await wait_for_event(hf, turn, "tool.result")
    await hf.sessions.kill(session.id)
    end = await wait_for_event(hf, turn, "turn.interrupted")
    assert end.error.message
    assert await stack.stored(session, "kept.txt") == b"kept"
    events = await run(hf, session, "run: cat kept.txt")
    assert "kept" in output(events)


async def test_a_turn_that_cannot_be_proven_fails_and_names_the_file(
    hf: Holdfast, session: Session
) -> None:
    if (await hf.capabilities()).providers[0].engine == "geesefs":
        pytest.skip("geesefs takes a backslash for a slash")
    events = await run(hf, session, r"run: touch 'back\slash'")
    assert events[-1].type == "turn.failed"
    assert events[-1].error.code == "not_durable"
    assert "back\\slash" in events[-1].error.message
    assert not of_type(events, "receipt")
    mended = await run(hf, session, "run: rm back*; echo fine > name")
    assert mended[-1].type == "turn.completed"
    assert [receipt.files for receipt in of_type(mended, "receipt")] == [1]


async def test_a_long_answer_arrives_whole_and_in_order(hf: Holdfast, session: Session) -> None:
    events = await run(hf, session, "answer with 2000 words")
    text = "".join(event.text for event in of_type(events, "message") if event.role == "assistant")
    assert len(text.split()) >= 2000
    assert len(of_type(events, "message")) < 500, "text is not joined"


async def test_output_with_nul_and_broken_utf8_is_stored(hf: Holdfast, session: Session) -> None:
    events = await run(hf, session, r"run: printf 'a\000b\377c\033[31m'; echo end")
    assert events[-1].type == "turn.completed"
    assert "end" in output(events)


async def test_a_model_error_is_seen_and_the_session_goes_on(
    hf: Holdfast, session: Session
) -> None:
    events = await run(hf, session, "fail with 400")
    assert events[-1].type == "turn.failed"
    assert (await run(hf, session, "say fine"))[-1].type == "turn.completed"


@with_each_harness
async def test_a_harness_that_dies_without_a_word_interrupts_the_turn(
    stack: RunningStack, hf: Holdfast, harness_session: Session
) -> None:
    session, program = harness_session, PROGRAMS[harness_session.harness]
    turn = await hf.turns.start(session.id, "write alive to alive.txt\nwait 100 seconds")
    await wait_for_event(hf, turn, "tool.result")
    assert await kill_in_box(stack, session, program), f"nothing in the box runs {program}"
    end = await wait_for_event(hf, turn, "turn.interrupted")
    assert end.error.retryable
    assert await stack.stored(session, "alive.txt") == b"alive"
    assert (await run(hf, session, "say fine"))[-1].type == "turn.completed"


async def kill_in_box(stack: RunningStack, session: Session, program: str) -> int:
    """SIGKILL what runs the harness itself, not its adapter; how many processes that was."""
    boxes = Boxes(stack.data_dir, stack.data_dir / "unused", Path("unused"))
    [box] = [box for box in boxes.all() if box.labels["session"] == str(session.id)]
    running = [process for process in boxes.processes(box) if process.argv[0].endswith(program)]
    for process in running:
        processes.kill(process.id)
    return len(running)


@with_each_harness
async def test_files_and_conversation_survive_the_turns_and_the_sandbox(
    stack: RunningStack, hf: Holdfast, harness_session: Session
) -> None:
    """The last case of the shared session, which it deletes."""
    session = harness_session
    for entry in [entry async for entry in hf.files.list(session.id)]:
        await hf.files.delete(session.id, entry.name)
    first = await run(hf, session, "write hello to dir/hello.txt\nremember the word barnacle")
    assert first[-1].type == "turn.completed"
    assert await stack.stored(session, "dir/hello.txt") == b"hello"
    [receipt] = of_type(first, "receipt")
    assert (receipt.files, receipt.bytes) == (1, 5)

    warm = await run(hf, session, "recall")
    assert [event.rung for event in of_type(warm, "resume")] == ["warm"]
    assert "barnacle" in "".join(event.text for event in of_type(warm, "message"))

    killed = await hf.sessions.kill(session.id)
    after = await run(hf, session, "run: cat dir/hello.txt\nrecall")
    assert after[-1].type == "turn.completed"
    assert "hello" in output(after)
    assert [event.rung for event in of_type(after, "resume")] == ["native"]
    [ready] = of_type(after, "sandbox.ready")
    assert ready.sandbox_id != killed.sandbox_id
    [verified] = of_type(after, "workspace.verified")
    assert (verified.files, verified.of) == (1, 1)
    said = "".join(event.text for event in of_type(after, "message") if event.role == "assistant")
    assert "remember the word barnacle" in said

    events = [event async for event in hf.events(session.id, follow=False)]
    assert [event.seq for event in events] == list(range(1, len(events) + 1))
    turns = [turn async for turn in hf.turns.list(session.id)]
    title = (await hf.sessions.get(session.id)).title
    assert title.startswith(turns[0].prompt.splitlines()[0][:28])
    deleted = await hf.sessions.delete(session.id)
    assert (deleted.sandboxes, deleted.objects, deleted.turns) == (1, 1, len(turns))
    assert await stack.stored(session, "dir/hello.txt") is None
