"""Every engine: what a sandbox writes is in the store, proven by another client."""

from __future__ import annotations

import dataclasses
import hashlib
import signal
import uuid
from pathlib import Path

import pytest

from contracts.errors import MountFailed, NotDurable, StoreUnavailable
from sidecar.boxhost import processes
from sidecar.boxhost.contract import MountSick
from sidecar.boxhost.mounts import Mounts
from sidecar.providers.base import TIMED_OUT, Command, SandboxSpec
from sidecar.workspace import live
from sidecar.workspace.host_mounted import HostMounted, MountedSandbox
from sidecar.workspace.store import Store
from tests.integration.workspace.conftest import HostOf


@pytest.fixture
def spec(short_dir: Path) -> SandboxSpec:
    session = str(uuid.uuid4())
    return SandboxSpec(f"{session}-1", session, {"session": session}, short_dir / "gw")


@pytest.fixture
async def sandbox(durable: HostMounted, spec: SandboxSpec) -> MountedSandbox:
    return await durable.create(spec)


async def sh(sandbox: MountedSandbox, script: str) -> str:
    result = await sandbox.exec(Command(["sh", "-c", script]))
    assert result.exit_code == 0, result.stderr.decode()
    return result.stdout.decode()


async def test_what_a_receipt_names_is_in_the_store_byte_for_byte(
    sandbox: MountedSandbox, spec: SandboxSpec, store: Store
) -> None:
    made = "mkdir -p a/b; echo hello > a/b/c.txt; head -c 300000 /dev/urandom > big; sha256sum big"
    digest = (await sh(sandbox, made)).split()[0]
    proof = await sandbox.workspace.barrier("turn-1", 1)
    assert (proof.files, proof.bytes) == (2, 300006)
    assert proof.engine == sandbox.report.engine
    assert await store.sha256(f"{spec.session_id}/big") == digest
    text = hashlib.sha256(b"hello\n").hexdigest()
    assert await store.sha256(f"{spec.session_id}/a/b/c.txt") == text


async def test_the_manifest_hash_follows_content_and_mode(sandbox: MountedSandbox) -> None:
    await sh(sandbox, "echo one > f")
    first = await sandbox.workspace.barrier("turn-1", 1)
    assert (await sandbox.workspace.barrier("turn-1", 1)).manifest_sha256 == first.manifest_sha256
    await sh(sandbox, "echo two > f")  # as long as before
    second = await sandbox.workspace.barrier("turn-1", 1)
    assert second.manifest_sha256 != first.manifest_sha256
    await sh(sandbox, "chmod 755 f")
    assert (await sandbox.workspace.barrier("turn-1", 1)).manifest_sha256 != second.manifest_sha256


async def test_a_deleted_file_leaves_the_store_too(
    sandbox: MountedSandbox, spec: SandboxSpec, store: Store
) -> None:
    await sh(sandbox, "echo x > gone; echo y > stays")
    await sandbox.workspace.barrier("turn-1", 1)
    await sh(sandbox, "rm gone")
    assert (await sandbox.workspace.barrier("turn-1", 1)).files == 1
    assert set(await store.list(f"{spec.session_id}/")) == {"stays"}


async def test_a_name_that_cannot_be_kept_is_no_receipt_and_is_named(
    sandbox: MountedSandbox,
) -> None:
    if sandbox.report.engine == "geesefs":
        pytest.skip("geesefs takes a backslash for a slash, and hangs on bad UTF-8")
    await sh(sandbox, r"echo x > 'back\slash'")
    with pytest.raises(NotDurable) as error:
        await sandbox.workspace.barrier("turn-1", 1)
    assert list(error.value.details["files"]) == ["back\\slash"]
    await sh(sandbox, "rm b*; echo good > name")
    assert (await sandbox.workspace.barrier("turn-1", 1)).files == 1


async def test_a_file_system_that_hangs_does_not_hang_us(
    durable: HostMounted, sandbox: MountedSandbox
) -> None:
    daemon = sandbox.workspace.mount.daemon
    processes.kill(daemon, signal.SIGSTOP)
    touch = Command(["touch", "/session/workspace/x"], cwd="/", timeout=1)
    assert (await sandbox.exec(touch)).exit_code == TIMED_OUT
    with pytest.raises(MountSick) as error:
        await sandbox.workspace.files.call("scan", bound=1, token="", held=[])
    assert error.value.kind == "hang"
    assert await durable.destroy(sandbox.id)
    assert await durable.release(sandbox.workspace.mount.session_id)
    assert not processes.alive(daemon)


async def test_the_mount_outlives_the_sandbox_and_the_next_one_sees_the_files(
    durable: HostMounted, sandbox: MountedSandbox, spec: SandboxSpec
) -> None:
    await sh(sandbox, "echo kept > file")
    daemon = sandbox.workspace.mount.daemon
    await durable.destroy(sandbox.id)
    assert processes.alive(daemon)
    second = await durable.create(dataclasses.replace(spec, key=f"{spec.session_id}-2"))
    assert not second.report.fresh
    assert await sh(second, "cat file") == "kept\n"


async def test_a_fresh_mount_sees_the_files(
    durable: HostMounted, sandbox: MountedSandbox, spec: SandboxSpec
) -> None:
    await sh(sandbox, "echo kept > file")
    await sandbox.workspace.barrier("turn-1", 1)
    await durable.destroy(sandbox.id)
    assert await durable.release(spec.session_id)
    second = await durable.create(dataclasses.replace(spec, key=f"{spec.session_id}-2"))
    assert second.report.fresh
    assert await sh(second, "cat file") == "kept\n"


async def test_a_dead_daemon_fails_writes_and_a_remount_heals_the_same_sandbox(
    durable: HostMounted, sandbox: MountedSandbox
) -> None:
    await sh(sandbox, "echo before > file")
    await sandbox.workspace.barrier("turn-1", 1)
    daemon = sandbox.workspace.mount.daemon
    processes.kill(daemon)
    assert await processes.wait_gone(daemon, 10)
    lost = await sandbox.exec(Command(["sh", "-c", "echo lost > /session/workspace/x"], cwd="/"))
    assert lost.exit_code != 0, "a write beside the store went through"
    again = await durable.attach(sandbox.id)
    assert again.report.fresh
    assert str(daemon.pid) in again.report.lost
    assert await sh(again, "cat file; echo after > file2; ls") == "before\nfile\nfile2\n"
    assert (await again.workspace.barrier("turn-1", 1)).files == 2


async def test_another_process_adopts_a_living_mount(
    durable: HostMounted, sandbox: MountedSandbox, spec: SandboxSpec, short_dir: Path
) -> None:
    later = Mounts(short_dir / "data")
    assert later.get(spec.session_id) == sandbox.workspace.mount


@pytest.mark.parametrize("witness", ["no-such-bucket", "elsewhere"])
async def test_a_store_that_does_not_confirm_the_mount_means_no_sandbox_at_all(
    host_of: HostOf, engine: str, spec: SandboxSpec, store: Store, witness: str
) -> None:
    """The store answers with an error, or that it has not what was written and fsynced: the mount
    is taken down again, and nothing runs on it."""
    durable = host_of(engine, store=store.in_bucket(witness))
    with pytest.raises((MountFailed, StoreUnavailable)):
        await durable.create(spec)
    assert await durable.workspace(spec.session_id) is None
    assert [info async for info in durable.list({})] == []


async def test_release_leaves_no_mount_and_no_daemon(
    durable: HostMounted, sandbox: MountedSandbox, spec: SandboxSpec
) -> None:
    mount = sandbox.workspace.mount
    await durable.destroy(sandbox.id)
    await durable.release(spec.session_id, forget=True)
    assert not processes.alive(mount.daemon)
    assert str(mount.path) not in Path("/proc/self/mountinfo").read_text()
    assert not mount.path.parent.exists()


async def test_two_sessions_do_not_see_each_other(
    durable: HostMounted, sandbox: MountedSandbox, short_dir: Path
) -> None:
    session = str(uuid.uuid4())
    other = SandboxSpec(f"{session}-1", session, {"session": session}, short_dir / "gw")
    second = await durable.create(other)
    await sh(sandbox, "echo secret > mine")
    assert await sh(second, "ls -a /session/workspace /session | grep -c mine || true") == "0\n"
    assert await sh(second, "ls /session") == "workspace\n"


async def test_the_live_view_lists_and_reads_but_follows_no_link(
    sandbox: MountedSandbox,
) -> None:
    await sh(sandbox, "mkdir d; echo text > d/f; ln -s /etc/passwd link; ln -s / rootlink")
    page = await live.listing(sandbox.workspace, "")
    assert {(e.name, e.kind) for e in page.entries} == {
        ("d", "directory"),
        ("link", "symlink"),
        ("rootlink", "symlink"),
    }
    first, size = await live.first_chunk(sandbox.workspace, "d/f")
    assert (first, size) == (b"text\n", 5)
    for escape in ("link", "rootlink/etc/passwd", "../secret", "nothing"):
        with pytest.raises(Exception, match="workspace answered"):
            await live.first_chunk(sandbox.workspace, escape)
