"""The engines' rules on a host that is a service of its own: the same ones, and what it adds."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import uuid
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from contracts.errors import BoxHostUnavailable, FileExists
from sidecar.boxhost import processes
from sidecar.boxhost.client import Patience, connect
from sidecar.boxhost.mounts import Mounts
from sidecar.providers.base import Capabilities, Command, SandboxSpec
from sidecar.providers.local import LocalProvider
from sidecar.workspace import edits, restore
from sidecar.workspace.barrier import Barrier
from sidecar.workspace.geesefs import with_geesefs
from sidecar.workspace.host_mounted import HostMounted, MountedSandbox
from sidecar.workspace.iam import SessionKeys
from sidecar.workspace.manifest import Manifests
from sidecar.workspace.store import Store, StoreAddress
from sidecar.workspace.weed import with_weed
from stack.install.binaries import find_weed
from stack.settings import Settings
from tests.integration.workspace.conftest import HostOf
from tests.integration.workspace.test_engines import (
    sh,
    test_a_dead_daemon_fails_writes_and_a_remount_heals_the_same_sandbox,
    test_a_deleted_file_leaves_the_store_too,
    test_a_file_system_that_hangs_does_not_hang_us,
    test_another_process_adopts_a_living_mount,
    test_release_leaves_no_mount_and_no_daemon,
    test_the_live_view_lists_and_reads_but_follows_no_link,
    test_what_a_receipt_names_is_in_the_store_byte_for_byte,
)
from tests.support.box_host import Place
from tests.support.requirements import missing
from tests.support.services import SeaweedFS

__all__ = [
    "test_a_dead_daemon_fails_writes_and_a_remount_heals_the_same_sandbox",
    "test_a_deleted_file_leaves_the_store_too",
    "test_a_file_system_that_hangs_does_not_hang_us",
    "test_another_process_adopts_a_living_mount",
    "test_release_leaves_no_mount_and_no_daemon",
    "test_the_live_view_lists_and_reads_but_follows_no_link",
    "test_what_a_receipt_names_is_in_the_store_byte_for_byte",
]


@pytest.fixture
def place(
    request: pytest.FixtureRequest,
    engine: str,
    short_dir: Path,
    bwrap: Path,
    fuse: None,
    address: StoreAddress,
    store_service: SeaweedFS,
) -> Place:
    geesefs = str(request.getfixturevalue("geesefs")) if engine == "geesefs" else ""
    return Place(
        short_dir,
        bwrap,
        {
            "HOLDFAST_WEED": str(find_weed(Settings())),
            "HOLDFAST_GEESEFS": geesefs,
            "HOLDFAST_FILER": store_service.filer,
            "HOLDFAST_S3_ENDPOINT": address.endpoint,
            "HOLDFAST_S3_BUCKET": address.bucket,
        },
    )


@pytest.fixture
async def service(place: Place) -> AsyncIterator[int]:
    """The service's pid."""
    try:
        with place.serving() as pid:
            yield pid
    finally:
        await place.stop_all()


@pytest.fixture
async def durable(
    service: int, place: Place, engine: str, store: Store, manifests: Manifests, keys: SessionKeys
) -> AsyncIterator[HostMounted]:
    async with connect(place.socket) as host:
        wrap = with_geesefs if engine == "geesefs" else with_weed
        yield wrap(LocalProvider(host.boxes), host.mounts, store, manifests, keys)


@pytest.fixture
def spec(place: Place) -> SandboxSpec:
    session = str(uuid.uuid4())
    gateway = place.gateway_dir / session / "sock"
    return SandboxSpec(f"{session}-1", session, {"session": session}, gateway)


@pytest.fixture
async def sandbox(durable: HostMounted, spec: SandboxSpec) -> MountedSandbox:
    return await durable.create(spec)


async def test_what_is_held_open_is_seen_although_nothing_tells_that_it_changed(
    sandbox: MountedSandbox,
) -> None:
    await sh(sandbox, "echo a > held; echo b > left")
    inode = int(await sh(sandbox, "stat -c %i held"))
    assert await sandbox.workspace.files.held() == set()
    await sandbox.spawn(Command(["sh", "-c", "exec 3<>held; sleep 600"]))
    async with asyncio.timeout(20):
        while inode not in await sandbox.workspace.files.held():
            await asyncio.sleep(0.05)


async def test_a_barrier_waits_for_a_box_host_that_is_restarted(
    sandbox: MountedSandbox, service: int, place: Place, store: Store, manifests: Manifests
) -> None:
    await sh(sandbox, "echo text > file")
    workspace, asked = sandbox.workspace, asyncio.Event()

    async def held() -> set[int]:
        try:
            return await files.held()
        except BoxHostUnavailable:
            asked.set()
            raise

    # What is under test is the barrier's own patience, once a call has lost its.
    async with connect(place.socket, Patience(away=0.1)) as hurried:
        files = hurried.mounts.files(workspace.mount)
        engine = workspace.engine
        barrier = Barrier(
            *(files, store, manifests, workspace.session_id, engine.name),
            sync_root=engine.sync_root,
            held=held,
        )
        os.kill(service, signal.SIGKILL)
        assert await processes.wait_pid(service, 10)
        proving = asyncio.ensure_future(barrier.prove("turn-1", 1))
        for _ in range(2):
            async with asyncio.timeout(20):
                await asked.wait()
            asked.clear()
        assert not proving.done(), "it gave up"
        with place.serving():
            async with asyncio.timeout(60):
                assert (await proving).files == 1


async def test_a_walker_that_died_between_its_two_steps_is_no_empty_workspace(
    sandbox: MountedSandbox,
) -> None:
    await sh(sandbox, "echo text > file")
    files = sandbox.workspace.files
    await files.call("scan", bound=20, token="", held=[])
    await files.close()
    with pytest.raises(Exception, match="nothing was scanned"):
        await files.call("settle", bound=20, sync_root=False)


async def test_a_name_with_a_way_out_is_not_put_into_the_workspace(
    sandbox: MountedSandbox, place: Place
) -> None:
    outside = place.home / "outside"
    outside.write_text("untouched")
    for name in ("../../../outside", str(outside), "..", ""):
        for op in ("put", "remove"):
            arguments = {"name": name} if op == "remove" else {"name": name, "text": "gone"}
            with pytest.raises(Exception, match="workspace answered"):
                await sandbox.workspace.files.call(op, bound=20, **arguments)
    assert outside.read_text() == "untouched"


def written_by(uid: int, directory: Path) -> None:
    argv = ["dd", "if=/dev/zero", "of=file", "count=1", "conv=fsync"]
    subprocess.run(argv, cwd=directory, user=uid, group=uid, extra_groups=[], check=True)


class AsOneUser(LocalProvider):
    """A provider whose sandboxes all have the same uid, as docker's have."""

    capabilities = Capabilities(mount="host", freeze=True, uid=1000)


async def test_a_mount_for_another_uid_is_made_anew(host_of: HostOf, engine: str) -> None:
    if os.geteuid() != 0:
        missing("root", "only root can mount as somebody else")
    session = str(uuid.uuid4())
    own, other = host_of(engine), host_of(engine, provider=AsOneUser)
    first, _ = await own.ready(session)
    uid = first.path.stat().st_uid
    assert uid not in (0, 1000)
    await asyncio.to_thread(written_by, uid, first.path)
    second, report = await other.ready(session)
    assert (report.fresh, report.lost) == (True, "")
    assert not processes.alive(first.mount.daemon)
    assert {second.path.stat().st_uid, (second.path / "file").stat().st_uid} == {1000}
    again, report = await other.ready(session)
    assert (report.fresh, again.mount) == (False, second.mount)
    _, report = await own.ready(session)
    assert report.fresh


async def test_a_mount_that_was_not_finished_is_not_adopted(
    host_of: HostOf, engine: str, short_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The box-host goes away after the mount, before what the file system forgot is put back."""

    async def away(*_: object, **__: object) -> restore.Restored:
        raise BoxHostUnavailable("away")

    host, session = host_of(engine), str(uuid.uuid4())
    with monkeypatch.context() as patched:
        patched.setattr(restore, "restore", away)
        with pytest.raises(BoxHostUnavailable):
            await host.ready(session)
    half = Mounts(short_dir / "data").get(session)
    assert half is not None
    assert await host.workspace(session) is None
    made, report = await host.ready(session)
    assert (report.fresh, report.lost) == (True, "")
    assert made.mount != half


async def test_a_user_changes_files_through_the_service(
    sandbox: MountedSandbox, spec: SandboxSpec, store: Store
) -> None:
    async def content() -> AsyncIterator[bytes]:
        yield b"x" * (5 << 20)
        yield b"end"

    told = await edits.put(sandbox.workspace, "a/in.bin", content(), replace=True)
    assert told.size == (5 << 20) + 3
    await edits.move(sandbox.workspace, "a", "b")
    await edits.mkdir(sandbox.workspace, "c")
    assert await sh(sandbox, "ls; tail -c 3 b/in.bin") == "b\nc\nend"
    with pytest.raises(FileExists):
        await edits.mkdir(sandbox.workspace, "c")
    await sandbox.workspace.barrier("turn-1", 1)
    assert list(await store.list(f"{spec.session_id}/")) == ["b/in.bin"]
    assert (await edits.delete(sandbox.workspace, "b")).files == 1
    assert await sh(sandbox, "ls") == "c\n"
