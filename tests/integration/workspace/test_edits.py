"""What a user changes through the mount: whole, by whole names, never through a link."""

from __future__ import annotations

import asyncio
import os
import uuid
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from contracts.errors import FileExists, FileNotFound, HoldfastError, InvalidPath
from sidecar.providers.base import Command, SandboxSpec
from sidecar.workspace import edits, live
from sidecar.workspace.engine import DurableSandbox, Workspace
from sidecar.workspace.host_mounted import HostMounted
from sidecar.workspace.manifest import Edit, Manifests
from sidecar.workspace.store import Store


@pytest.fixture
def spec(short_dir: Path) -> SandboxSpec:
    session = str(uuid.uuid4())
    return SandboxSpec(f"{session}-1", session, {"session": session}, short_dir / "gw")


@pytest.fixture
async def sandbox(durable: HostMounted, spec: SandboxSpec) -> DurableSandbox:
    return await durable.create(spec)


@pytest.fixture
def workspace(sandbox: DurableSandbox) -> Workspace:
    return sandbox.workspace


async def sh(sandbox: DurableSandbox, script: str) -> str:
    result = await sandbox.exec(Command(["sh", "-c", script]))
    assert result.exit_code == 0, result.stderr.decode()
    return result.stdout.decode()


async def of(*pieces: bytes) -> AsyncIterator[bytes]:
    for piece in pieces:
        yield piece


async def stored(store: Store, spec: SandboxSpec) -> list[str]:
    return sorted(await store.list(f"{spec.session_id}/"))


async def test_what_is_put_is_the_sandboxs_own_and_in_the_store(
    sandbox: DurableSandbox, workspace: Workspace, spec: SandboxSpec, store: Store
) -> None:
    big = os.urandom(9 << 20)
    told = await edits.put(workspace, "a/b/big.bin", of(big[:10], big[10:]), replace=True)
    assert (told.path, told.kind, told.size, told.via) == ("a/b/big.bin", "file", 9 << 20, "mount")
    found = await store.get(f"{spec.session_id}/a/b/big.bin")
    assert found is not None
    assert found[0] == big
    # its user may write there as if it had made it
    assert await sh(sandbox, "echo more >> a/b/big.bin && echo x > a/b/new && ls a/b") == (
        "big.bin\nnew\n"
    )
    await edits.put(workspace, "a/b/new", of(), replace=True)
    assert await sh(sandbox, "wc -c < a/b/new") == "0\n"
    assert (await workspace.barrier("turn-1", 1)).files == 2
    assert await stored(store, spec) == ["a/b/big.bin", "a/b/new"]


async def test_an_upload_that_breaks_off_leaves_nothing(
    sandbox: DurableSandbox, workspace: Workspace, spec: SandboxSpec, store: Store
) -> None:
    async def broken() -> AsyncIterator[bytes]:
        yield b"x" * (5 << 20)
        raise ConnectionAbortedError

    with pytest.raises(ConnectionAbortedError):
        await edits.put(workspace, "a.bin", broken(), replace=True)
    assert await sh(sandbox, "ls -A") == ""
    await workspace.barrier("turn-1", 1)
    assert await stored(store, spec) == []


async def test_no_link_is_followed(
    sandbox: DurableSandbox, workspace: Workspace, tmp_path: Path
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "kept").write_text("kept")
    links = f"ln -s {outside} out; ln -s {outside}/kept file; mkdir d; ln -s {outside} d/out"
    await sh(sandbox, links)
    for attempt in (
        edits.put(workspace, "out/new", of(b"x"), replace=True),
        edits.mkdir(workspace, "out/new"),
        edits.move(workspace, "out/kept", "mine"),
        edits.move(workspace, "d", "out/d"),
        edits.delete(workspace, "out/kept"),
        edits.put(workspace, "../up", of(b"x"), replace=True),
        edits.mkdir(workspace, "a/../../up"),
    ):
        with pytest.raises((InvalidPath, FileNotFound)):
            await attempt
    # a link itself may go, and what it leads to stays
    assert (await edits.delete(workspace, "d")).files == 1
    await edits.put(workspace, "file", of(b"mine"), replace=True)
    await edits.delete(workspace, "out")
    assert sorted(path.name for path in outside.iterdir()) == ["kept"]
    assert (outside / "kept").read_text() == "kept"
    assert await sh(sandbox, "cat file; ls -A") == "minefile\n"


async def test_names_are_whole_and_nothing_is_overwritten(
    sandbox: DurableSandbox, workspace: Workspace
) -> None:
    await sh(sandbox, "mkdir -p a/b ab; echo 1 > a/b/1; echo 2 > ab/2; echo 3 > a.txt")
    refused: list[tuple[type[HoldfastError], object]] = [
        (FileExists, edits.put(workspace, "a", of(b"x"), replace=True)),
        (FileExists, edits.put(workspace, "a.txt", of(b"x"), replace=False)),
        (FileExists, edits.mkdir(workspace, "ab")),
        (FileExists, edits.move(workspace, "a", "ab")),
        (InvalidPath, edits.move(workspace, "a", "a/b/c")),
        (InvalidPath, edits.mkdir(workspace, "a.txt/x")),
        (FileNotFound, edits.move(workspace, "zz", "y")),
        (FileNotFound, edits.delete(workspace, "zz")),
    ]
    for error, attempt in refused:
        with pytest.raises(error):
            await attempt  # type: ignore[misc]
    assert (await edits.move(workspace, "a", "new/a")).kind == "directory"
    gone = await edits.delete(workspace, "new")
    assert (gone.files, gone.directories) == (1, 3)
    assert await sh(sandbox, "find . -type f | sort") == "./a.txt\n./ab/2\n"


async def test_a_user_changes_files_while_the_sandbox_works(
    sandbox: DurableSandbox, workspace: Workspace
) -> None:
    work = asyncio.create_task(sh(sandbox, "i=0; while ! [ -e stop ]; do i=$((i+1)); done; cat in"))
    await edits.put(workspace, "in", of(b"from outside"), replace=True)
    await edits.put(workspace, "stop", of(b""), replace=True)
    async with asyncio.timeout(30):
        assert await work == "from outside"


async def test_the_live_view_marks_what_no_receipt_has(
    sandbox: DurableSandbox, workspace: Workspace
) -> None:
    await sh(sandbox, "mkdir d; echo 1 > same; echo 2 > other; echo 3 > gone; ln -s same link")
    marks = {e.name: e.durable for e in (await live.listing(workspace, "")).entries}
    assert marks == {"d": False, "same": False, "other": False, "gone": False, "link": False}
    await workspace.barrier("turn-1", 1)
    page = await live.listing(workspace, "")
    assert {e.durable for e in page.entries} == {True}
    assert page.removed == []
    await sh(sandbox, "echo longer > other; rm gone; echo 4 > new; echo 5 > d/in")
    page = await live.listing(workspace, "")
    marks = {e.name: e.durable for e in page.entries}
    assert marks == {"d": True, "same": True, "other": False, "new": False, "link": True}
    assert page.removed == ["gone"]
    assert [e.durable for e in (await live.listing(workspace, "d")).entries] == [False]


async def test_the_next_mount_does_not_undo_what_a_user_did(
    durable: HostMounted, sandbox: DurableSandbox, spec: SandboxSpec
) -> None:
    made = "mkdir -p hollow bin/empty; echo x > bin/tool; chmod 751 bin/tool; ln -s tool bin/link"
    await sh(sandbox, f"{made}; ln -s nowhere was-link; touch -d 2001-02-03 bin/tool")
    await sandbox.workspace.barrier("turn-1", 1)
    workspace = sandbox.workspace
    await edits.delete(workspace, "hollow")
    await edits.move(workspace, "bin", "tools/bin")
    await edits.put(workspace, "was-link", of(), replace=True)
    await durable.destroy(sandbox.id)
    await durable.release(spec.session_id)
    again = await durable.create(spec)
    seen = await sh(again, "find . -mindepth 1 | sort; stat -c '%a %Y' tools/bin/tool")
    assert seen.splitlines() == [
        "./tools",
        "./tools/bin",
        "./tools/bin/empty",
        "./tools/bin/link",
        "./tools/bin/tool",
        "./was-link",
        "751 981158400",
    ]
    assert await sh(again, "readlink tools/bin/link; [ -L was-link ] || echo a file") == (
        "tool\na file\n"
    )


async def test_edits_count_until_the_next_receipt(
    sandbox: DurableSandbox, spec: SandboxSpec, manifests: Manifests
) -> None:
    await manifests.edited(spec.session_id, Edit("early"))  # before any receipt: nothing to note
    await sh(sandbox, "mkdir a ab; echo 1 > a/1; echo 2 > ab/2")
    await sandbox.workspace.barrier("turn-1", 1)
    await manifests.edited(spec.session_id, Edit("a", "b"))
    await manifests.edited(spec.session_id, Edit("b/1"))
    latest = await manifests.latest(spec.session_id)
    assert latest is not None
    assert [entry.path for entry in latest.entries] == ["ab", "ab/2", "b"]
    await sandbox.workspace.barrier("turn-2", 2)
    latest = await manifests.latest(spec.session_id)
    assert latest is not None
    assert [entry.path for entry in latest.entries] == ["a", "a/1", "ab", "ab/2"]
