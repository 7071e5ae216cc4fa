"""A mount that is sick in the middle of a turn is told from one that is well, and mounted anew."""

from __future__ import annotations

import asyncio
import os
import signal
import uuid
from dataclasses import replace
from pathlib import Path

import pytest

from contracts.errors import MountFailed
from sidecar.boxhost import processes
from sidecar.boxhost.contract import MountKey, MountSick
from sidecar.boxhost.daemons import Daemon, Geesefs
from sidecar.boxhost.host_files import HostFiles
from sidecar.boxhost.in_process import OwnMounts
from sidecar.boxhost.mounts import Mounts
from sidecar.providers.base import Command, SandboxSpec
from sidecar.workspace import restore
from sidecar.workspace.engine import WorkspaceLimits
from sidecar.workspace.host_mounted import HostMounted, MountedSandbox
from sidecar.workspace.iam import SessionKeys
from sidecar.workspace.store import StoreAddress
from tests.integration.workspace.conftest import HostOf
from tests.support.requirements import missing
from tests.support.small_disk import fill_disk, free_disk, mount_disk, unmount_disk


@pytest.fixture
def session() -> str:
    return str(uuid.uuid4())


@pytest.fixture
def spec(session: str, short_dir: Path) -> SandboxSpec:
    return SandboxSpec(f"{session}-1", session, {"session": session}, short_dir / "gw")


@pytest.fixture
async def sandbox(durable: HostMounted, spec: SandboxSpec) -> MountedSandbox:
    return await durable.create(spec)


async def sh(sandbox: MountedSandbox, script: str) -> str:
    result = await sandbox.exec(Command(["sh", "-c", script], cwd="/"))
    assert result.exit_code == 0, result.stderr.decode()
    return result.stdout.decode()


async def test_a_mount_that_answers_is_well(
    durable: HostMounted, sandbox: MountedSandbox, session: str
) -> None:
    assert await durable.check(session) == ""


async def test_a_session_without_a_mount_is_not_well(durable: HostMounted, session: str) -> None:
    assert await durable.check(session) == "it is not mounted"


async def test_a_dead_daemon_is_told_and_the_same_sandbox_goes_on_with_the_next_mount(
    durable: HostMounted, sandbox: MountedSandbox, session: str
) -> None:
    await sh(sandbox, "cd /session/workspace; echo 1 > file; chmod 755 file; ln -s file link")
    await sandbox.workspace.barrier("turn-0", 1)
    daemon = sandbox.workspace.mount.daemon
    processes.kill(daemon)
    assert await processes.wait_gone(daemon, 10)
    sick = await durable.check(session)
    assert sick.startswith("ENOTCONN")
    with pytest.raises(MountSick) as error:
        await restore.look(sandbox.workspace.files)
    assert error.value.kind == "ENOTCONN", "the file system itself says so too"
    report = await durable.remount(session, sick)
    assert (report.fresh, report.lost) == (True, sick)
    assert await durable.check(session) == ""
    look = "cd /session/workspace; cat link; stat -c %a file; echo 2 > file2"
    assert await sh(sandbox, look) == "1\n755\n"
    healed = await durable.workspace(session)
    assert healed is not None
    await healed.barrier("turn-1", 1)


async def test_a_hanging_daemon_is_told_within_the_bound_and_replaced(
    host_of: HostOf, engine: str, spec: SandboxSpec, session: str
) -> None:
    durable = host_of(engine, limits=WorkspaceLimits(look=1))
    sandbox = await durable.create(spec)
    await sh(sandbox, "echo 1 > /session/workspace/file")
    await sandbox.workspace.barrier("turn-0", 1)
    processes.kill(sandbox.workspace.mount.daemon, signal.SIGSTOP)
    sick = await durable.check(session)
    assert sick.startswith("hang")
    report = await durable.remount(session, sick)
    assert report.lost == sick
    assert await sh(sandbox, "cat /session/workspace/file") == "1\n"


async def test_a_check_does_not_wait_for_whoever_is_busy_with_the_workspace(
    durable: HostMounted, sandbox: MountedSandbox, session: str
) -> None:
    """A barrier may take minutes; the daemon is well all the while."""
    assert isinstance(sandbox.workspace.files, HostFiles)
    async with sandbox.workspace.files.busy, asyncio.timeout(20):
        assert await durable.check(session) == ""


class ForItselfAlone(Geesefs):
    """geesefs that lets nobody in but its own user."""

    def daemon(self, session_id: str, mountpoint: Path, uid: int, key: MountKey | None) -> Daemon:
        daemon = super().daemon(session_id, mountpoint, uid, key)
        return replace(daemon, argv=[a for a in daemon.argv if a not in ("-o", "allow_other")])


async def test_another_users_mount_is_told_by_its_refusal(
    host_of: HostOf,
    geesefs: Path,
    session: str,
    short_dir: Path,
    keys: SessionKeys,
    address: StoreAddress,
) -> None:
    """geesefs mounts as the session's user; without `allow_other` even root is refused."""
    if os.geteuid() != 0:
        missing("root", "only root can mount as somebody else")
    daemons = {"geesefs": ForItselfAlone(geesefs, address.endpoint, address.bucket)}
    host = host_of("geesefs", daemons=daemons)
    mounts = OwnMounts(Mounts(short_dir / "data"), daemons, address.bucket)
    key = await keys.grant(session, await mounts.name())
    await mounts.mount(session, "geesefs", None, MountKey(key.access_key, key.secret_key))
    assert (await host.check(session)).startswith("EACCES")
    with pytest.raises(MountFailed, match="Permission denied"):
        await host.ready(session)
    assert await host.workspace(session) is None


async def test_a_mount_whose_cache_was_on_a_full_disk_is_mounted_anew_for_the_next_turn(
    host_of: HostOf, spec: SandboxSpec, session: str, short_dir: Path
) -> None:
    """weed goes on to write, and fails to list, until its daemon is another one."""
    if os.geteuid() != 0:
        missing("root", "only root can mount a disk to fill")
    cache = short_dir / "cache-data"
    mount_disk(cache, 0o755)
    try:
        durable = host_of("weed")
        sandbox = await durable.create(spec)
        fill_disk(cache)
        many = "cd /session/workspace; for n in $(seq 300); do echo $n > $n.txt; done; ls | wc -l"
        seen = await sandbox.exec(Command(["sh", "-c", many], cwd="/"))
        assert b"Input/output error" in seen.stderr
        free_disk(cache)
        still = await sandbox.exec(Command(["ls", "/session/workspace"], cwd="/"))
        assert still.exit_code != 0
        workspace, report = await durable.ready(session)
        assert (report.fresh, report.lost[:3]) == (True, "EIO")
        assert await sh(sandbox, "ls /session/workspace | wc -l") == "300\n"
        await workspace.barrier("turn-1", 1)
        await durable.release(session)
    finally:
        unmount_disk(cache)
