"""The barrier around a sandbox whose processes go on writing: what the receipt names is what the
sandbox had while it was frozen, and the processes never notice."""

from __future__ import annotations

import asyncio
import hashlib
import signal
import uuid
from pathlib import Path

import pytest

from contracts.errors import NotDurable
from sidecar.boxhost import processes
from sidecar.providers.base import Command, SandboxProcess, SandboxSpec
from sidecar.workspace.host_mounted import HostMounted, MountedSandbox
from sidecar.workspace.manifest import Entry, Manifests
from sidecar.workspace.store import Store
from tests.integration.workspace.conftest import HostOf

APPENDS = """
import time
with open("log", "ab", buffering=0) as log:
    n = 0
    while True:
        log.write(b"line %d\\n" % n); n += 1
        time.sleep(0.001)
"""
# Once it is told to, it overwrites as many bytes as there are, and gives the file its old time.
REWRITES = """
import ctypes, mmap, os, time
libc = ctypes.CDLL(None)
libc.mmap.restype = ctypes.c_void_p
def mapped(fd):  # Python's own mapping keeps a descriptor
    shared, both = mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE
    place = libc.mmap(None, ctypes.c_size_t(4), both, shared, fd, ctypes.c_long(0))
    os.close(fd)
    return place
fd = os.open("file", os.O_RDWR)
{hold}
open("/tmp/ready", "w").close()
while not os.path.exists("/tmp/go"):
    time.sleep(0.01)
{write}
{after}
open("/tmp/done", "w").close()
while True:
    time.sleep(60)
"""
BY_DESCRIPTOR = REWRITES.format(
    hold="old = os.fstat(fd)",
    write="os.pwrite(fd, b'new2', 0)",
    after="os.utime(fd, ns=(old.st_atime_ns, old.st_mtime_ns))",
)
BY_MAPPING = REWRITES.format(
    hold="place = mapped(fd)", write="ctypes.memmove(place, b'new2', 4)", after=""
)
BY_MAPPING_THAT_IS_GONE = REWRITES.format(
    hold="place = mapped(fd)",
    write="ctypes.memmove(place, b'new2', 4)",
    after="libc.munmap(ctypes.c_void_p(place), ctypes.c_size_t(4))",
)


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


async def eventually(sandbox: MountedSandbox, condition: str) -> None:
    """Wait until a shell condition holds inside."""
    await sh(sandbox, f"until {condition}; do sleep 0.02; done")


async def receipt_of(sandbox: MountedSandbox, manifests: Manifests, path: str) -> Entry:
    await sandbox.workspace.barrier("turn-1", 1)
    manifest = await manifests.latest(sandbox.workspace.mount.session_id)
    assert manifest is not None
    return next(entry for entry in manifest.entries if entry.path == path)


async def content(store: Store, sandbox: MountedSandbox, path: str) -> bytes:
    found = await store.get(f"{sandbox.workspace.mount.session_id}/{path}")
    assert found is not None
    return found[0]


async def test_a_process_that_appends_all_the_time_is_in_each_receipt_and_lives_on(
    sandbox: MountedSandbox, store: Store, manifests: Manifests
) -> None:
    await sandbox.spawn(Command(["python3", "-c", APPENDS]))
    await eventually(sandbox, "test -s log")
    stored = b""
    for _ in range(3):
        await eventually(sandbox, f"test $(stat -c %s log) -gt {len(stored)}")
        async with sandbox.frozen():
            entry = await receipt_of(sandbox, manifests, "log")
            seen = await sh(sandbox, "sha256sum < log")
            before, stored = stored, await content(store, sandbox, "log")
        assert entry.sha256 == seen.split()[0] == hashlib.sha256(stored).hexdigest()
        assert stored.startswith(before)
        assert len(stored) > len(before)
    assert len(await sandbox.processes()) == 1


@pytest.mark.parametrize(
    "script", [BY_DESCRIPTOR, BY_MAPPING, BY_MAPPING_THAT_IS_GONE], ids=["fd", "map", "unmapped"]
)
async def test_what_is_written_without_a_trace_is_in_the_receipt(
    sandbox: MountedSandbox, store: Store, manifests: Manifests, script: str
) -> None:
    """Neither the size nor, in the end, the time of the file tells that it has other bytes."""
    await sh(sandbox, "printf old1 > file")
    await sandbox.spawn(Command(["python3", "-c", script]))
    await eventually(sandbox, "test -e /tmp/ready")
    async with sandbox.frozen():
        await sandbox.workspace.barrier("turn-0", 1)
    await sh(sandbox, "touch /tmp/go")
    await eventually(sandbox, "test -e /tmp/done")
    async with sandbox.frozen():
        entry = await receipt_of(sandbox, manifests, "file")
        assert await content(store, sandbox, "file") == b"new2"
    assert entry.sha256 == hashlib.sha256(b"new2").hexdigest()


async def test_it_is_thawed_on_every_way_out(sandbox: MountedSandbox) -> None:
    await sandbox.spawn(Command(["python3", "-c", APPENDS]))
    await eventually(sandbox, "test -s log")

    async def goes_on() -> None:
        size = int(await sh(sandbox, "stat -c %s log"))
        await eventually(sandbox, f"test $(stat -c %s log) -gt {size}")

    with pytest.raises(ZeroDivisionError):
        async with sandbox.frozen():
            raise ZeroDivisionError
    await goes_on()

    inside = asyncio.Event()

    async def hold() -> None:
        async with sandbox.frozen():
            inside.set()
            await asyncio.Event().wait()

    holding = asyncio.ensure_future(hold())
    await inside.wait()
    holding.cancel()
    with pytest.raises(asyncio.CancelledError):
        await holding
    await goes_on()


async def test_a_dead_sandbox_has_nothing_to_freeze_and_its_files_are_proven(
    durable: HostMounted, sandbox: MountedSandbox, store: Store
) -> None:
    await sh(sandbox, "echo left > behind")
    await durable.destroy(sandbox.id)
    async with sandbox.frozen():
        assert (await sandbox.workspace.barrier("turn-1", 1)).files == 1
    assert await content(store, sandbox, "behind") == b"left\n"


def _in_fuse(process: SandboxProcess) -> bool:
    pid = process.token.split(":")[0]
    try:
        return Path(f"/proc/{pid}/wchan").read_text() == "request_wait_answer"
    except (FileNotFoundError, ProcessLookupError):
        return False  # it has ended since it was listed


async def test_a_process_that_hangs_in_the_file_system_means_no_receipt_and_nothing_stays_frozen(
    host_of: HostOf, engine: str, spec: SandboxSpec
) -> None:
    sandbox = await host_of(engine, freeze_seconds=1).create(spec)
    daemon = sandbox.workspace.mount.daemon
    await sandbox.spawn(Command(["sh", "-c", "while :; do date > /tmp/clock; done"], cwd="/"))
    processes.kill(daemon, signal.SIGSTOP)
    try:
        await sandbox.spawn(Command(["sh", "-c", "echo x > /session/workspace/x"], cwd="/"))
        async with asyncio.timeout(10):
            while not any(_in_fuse(process) for process in await sandbox.processes()):
                await asyncio.sleep(0.01)
        with pytest.raises(NotDurable, match="cannot be frozen"):
            async with sandbox.frozen():
                pass
        goes_on = "rm /tmp/clock; until test -e /tmp/clock; do :; done"
        assert (await sandbox.exec(Command(["sh", "-c", goes_on], cwd="/"))).exit_code == 0
    finally:
        processes.kill(daemon, signal.SIGCONT)
