"""A session's workspace is mounted or copied, as it says, and changes from one to the other."""

from __future__ import annotations

from client import Holdfast
from tests.e2e.conftest import RunningStack, of_type, output, run
from tests.support.light_agent.tree import LIGHT


async def test_a_session_says_how_its_workspace_is_kept(hf: Holdfast, stack: RunningStack) -> None:
    session = await hf.sessions.create(**LIGHT, durability="checkpoint")
    assert session.durability == "checkpoint"

    copied = await run(hf, session, "write one to a.txt then run: ln -s a.txt link")
    [receipt] = of_type(copied, "receipt")
    assert receipt.engine == "checkpoint"
    assert receipt.window > 0
    assert await stack.stored(session, "a.txt") == b"one"

    mounted = await run(hf, session, "run: cat link && echo two > b.txt", durability="mount")
    assert "one" in output(mounted)
    assert [event.engine for event in of_type(mounted, "receipt")] != ["checkpoint"]
    assert len(of_type(mounted, "sandbox.destroyed")) == 1, "the first sandbox has another disk"

    again = await run(hf, session, "run: cat a.txt b.txt")
    assert "two" in output(again)
    assert [event.engine for event in of_type(again, "receipt")] == ["checkpoint"]
    await hf.sessions.delete(session.id)


async def test_what_was_copied_survives_a_kill_in_the_middle_of_a_turn(hf: Holdfast) -> None:
    session = await hf.sessions.create(**LIGHT, durability="checkpoint")
    await run(hf, session, "write kept to kept.txt")
    turn = await hf.turns.start(session.id, "run: echo lost > lost.txt; sleep 600")
    async for event in hf.events(session.id, after=turn.first_seq - 1):
        if event.type == "tool.call":
            await hf.sessions.kill(session.id)
        if event.type == "receipt":
            assert "lost" in event.lost
        if event.type == "turn.interrupted":
            break
    shown = await run(hf, session, "run: cat kept.txt")
    assert "kept" in output(shown)
    await hf.sessions.delete(session.id)
