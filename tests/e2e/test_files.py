"""Files that users change, with real sandboxes: through the mount, behind a turn, and without."""

from __future__ import annotations

import io
import zipfile

import pytest

from client import Holdfast
from contracts.bodies import Session
from contracts.errors import FileNotFound, InvalidPath, SandboxNotFound, TurnRunning
from tests.e2e.conftest import RunningStack, of_type, output, run, wait_for_end, wait_for_event


async def marks(hf: Holdfast, session: Session, path: str = "") -> dict[str, bool | None]:
    return {entry.name: entry.durable async for entry in hf.live.list(session.id, path)}


async def names(hf: Holdfast, session: Session, path: str = "") -> list[str]:
    return [entry.name async for entry in hf.files.list(session.id, path)]


async def test_what_is_put_before_the_first_turn_is_there_for_it(
    stack: RunningStack, hf: Holdfast, session: Session
) -> None:
    assert (await hf.files.put(session.id, "docs/in.txt", b"from a user\n")).via == "store"
    assert (await hf.files.mkdir(session.id, "empty")).via == "store"
    assert (await hf.files.move(session.id, "docs", "papers")).via == "store"
    events = await run(hf, session, "run: cat papers/in.txt; ls; echo hi > papers/out.txt")
    assert output(events).split() == ["from", "a", "user", "empty", "papers"]
    assert len(of_type(events, "receipt")) == 1
    turn = [turn async for turn in hf.turns.list(session.id)][-1]
    changes = await hf.turns.changes(session.id, turn.id)
    assert "papers/out.txt" in [change.path for change in changes.added]
    assert changes.since is None


async def test_a_user_and_a_running_turn_change_files_side_by_side(
    stack: RunningStack, hf: Holdfast, session: Session
) -> None:
    prompt = "run: while ! [ -s go.txt ]; do sleep 0.1; done; cat go.txt > seen.txt"
    turn = await hf.turns.start(session.id, prompt)
    await wait_for_event(hf, turn, "tool.call")
    [box] = [b for b in (await hf.sandboxes()).sandboxes if b.session_id == session.id]
    assert box.in_use
    with pytest.raises(TurnRunning):
        await hf.sessions.destroy(session.id)
    assert (await hf.files.put(session.id, "go.txt", b"go!")).via == "mount"
    assert (await wait_for_end(hf, turn)).type == "turn.completed"
    assert await stack.stored(session, "seen.txt") == b"go!"
    assert await stack.stored(session, "go.txt") == b"go!"


async def test_between_turns_the_mount_is_used_and_what_is_new_is_marked(
    stack: RunningStack, hf: Holdfast, session: Session
) -> None:
    await run(hf, session, "run: mkdir -p a/deep ab; echo 1 > a/deep/1; echo 2 > ab/2; echo 3 > c")
    assert await marks(hf, session) == {"a": True, "ab": True, "c": True}
    assert (await hf.files.put(session.id, "new.txt", b"x")).via == "mount"
    assert await marks(hf, session) == {"a": True, "ab": True, "c": True, "new.txt": False}
    deleted = await hf.files.delete(session.id, "a")
    assert (deleted.files, deleted.directories, deleted.via) == (1, 2, "mount")
    assert (await hf.files.move(session.id, "c", "ab/c")).via == "mount"
    events = await run(hf, session, "run: find . -type f | sort")
    assert output(events).split() == ["./ab/2", "./ab/c", "./new.txt"]
    assert await names(hf, session) == ["ab", "new.txt"]
    assert await marks(hf, session, "ab") == {"2": True, "c": True}
    zipped = b"".join([chunk async for chunk in hf.files.zip(session.id, "ab")])
    with zipfile.ZipFile(io.BytesIO(zipped)) as archive:
        assert {name: archive.read(name) for name in archive.namelist()} == {
            "2": b"2\n",
            "c": b"3\n",
        }
    turn = [turn async for turn in hf.turns.list(session.id)][-1]
    changes = await hf.turns.changes(session.id, turn.id)
    assert [change.path for change in changes.added] == ["ab/c", "new.txt"]
    assert [change.path for change in changes.removed] == ["a", "a/deep", "a/deep/1", "c"]


async def test_what_is_changed_without_a_sandbox_is_what_the_next_one_sees(
    stack: RunningStack, hf: Holdfast, session: Session
) -> None:
    made = "mkdir -p bin gone hollow; echo x > bin/tool; chmod 755 bin/tool; echo y > gone/y"
    await run(hf, session, f"run: {made}; ln -s tool bin/link")
    destroyed = await hf.sessions.destroy(session.id)
    assert destroyed.lived
    assert "gone" in destroyed.proof
    with pytest.raises(SandboxNotFound):
        await hf.sessions.destroy(session.id)
    assert (await hf.files.move(session.id, "bin", "tools")).via == "store"
    assert (await hf.files.delete(session.id, "gone")).via == "store"
    assert (await hf.files.delete(session.id, "hollow")).via == "store"
    assert (await hf.files.put(session.id, "big.bin", b"z" * (9 << 20))).via == "store"
    with pytest.raises(FileNotFound):
        await hf.files.delete(session.id, "gone")
    script = (
        "find . -mindepth 1 | sort; stat -c %a tools/tool; readlink tools/link; wc -c < big.bin"
    )
    events = await run(hf, session, f"run: {script}")
    assert output(events).split() == [
        "./big.bin",
        "./tools",
        "./tools/link",
        "./tools/tool",
        "755",
        "tool",
        str(9 << 20),
    ]
    assert len(of_type(events, "receipt")) == 1


async def test_a_sandbox_tells_its_memory_and_how_long_it_stays(
    hf: Holdfast, session: Session
) -> None:
    await run(hf, session, "say hello")
    [box] = [b for b in (await hf.sandboxes()).sandboxes if b.session_id == session.id]
    assert box.memory is not None
    assert 20 << 20 < box.memory < 4 << 30
    assert box.created_at is not None
    assert box.warm_until is not None
    assert box.warm_until > box.created_at
    assert not box.in_use
    assert box.title == "say hello"


async def test_a_link_leads_nowhere_for_a_user(hf: Holdfast, session: Session) -> None:
    await run(hf, session, "run: ln -s /home/agent out; ln -s /etc/passwd pw; mkdir d")
    for path in ("out/x", "pw/x"):
        with pytest.raises(InvalidPath):
            await hf.files.put(session.id, path, b"x")
    with pytest.raises(FileNotFound):
        await hf.live.read(session.id, "pw")
    await hf.files.delete(session.id, "out")
    events = await run(hf, session, "run: ls -A /home/agent | wc -l; ls -l /etc/passwd | wc -l; ls")
    kept, passwd, *left = output(events).split()
    assert int(kept) > 0
    assert passwd == "1"
    assert left == ["d", "pw"]
