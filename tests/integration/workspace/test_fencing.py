"""Who mounts a session shuts out whoever had it mounted before, on whichever host."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import signal
import sys
import uuid
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from contracts.errors import MountFailed, StoreUnavailable
from sidecar.boxhost import processes
from sidecar.boxhost.daemons import Geesefs
from sidecar.boxhost.in_process import OwnMounts
from sidecar.boxhost.mounts import Mount, Mounts
from sidecar.workspace import engine as engines
from sidecar.workspace import host_mounted
from sidecar.workspace.host_mounted import HostMounted, MountedWorkspace
from sidecar.workspace.iam import SessionKeys
from sidecar.workspace.manifest import Manifests
from sidecar.workspace.store import Store, StoreAddress
from tests.integration.workspace.conftest import HostOf
from tests.support.services import process, until


@pytest.fixture
def session() -> str:
    return str(uuid.uuid4())


def fsynced(path: Path, text: str) -> None:
    with path.open("w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


# A process of its own: one that has a file open on a frozen mount cannot even start another.
WRITER = """
import os, sys
os.chdir(sys.argv[1])
fd = os.open("file", os.O_WRONLY)
os.pwrite(fd, b"zombi", 0)
print("dirty", flush=True)
for line in sys.stdin:
    try:
        if line == "new\\n":
            fd = os.open("another", os.O_WRONLY | os.O_CREAT)
            os.write(fd, b"zombi")
        os.fsync(fd)
        print("stored", flush=True)
    except OSError as error:
        print("refused:", error.strerror, flush=True)
"""


class Zombie:
    """A mount with a file that is rewritten but not stored, and its daemon stopped."""

    def __init__(self, workspace: MountedWorkspace, writer: asyncio.subprocess.Process) -> None:
        self.daemon = workspace.mount.daemon
        self._writer = writer

    async def wakes_and_stores(self, what: str = "old") -> str:
        """What comes of it: fsync tells that it has tried, and what the store said."""
        processes.kill(self.daemon, signal.SIGCONT)
        assert self._writer.stdin is not None
        self._writer.stdin.write(f"{what}\n".encode())
        return await self.says()

    async def says(self) -> str:
        assert self._writer.stdout is not None
        async with asyncio.timeout(60):
            return (await self._writer.stdout.readline()).decode().strip()


@contextlib.asynccontextmanager
async def zombie_of(workspace: MountedWorkspace) -> AsyncIterator[Zombie]:
    await asyncio.to_thread(fsynced, workspace.path / "file", "first")
    writer = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", WRITER, str(workspace.path)),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    zombie = Zombie(workspace, writer)
    assert await zombie.says() == "dirty"
    processes.kill(zombie.daemon, signal.SIGSTOP)
    try:
        yield zombie
    finally:
        processes.kill(zombie.daemon, signal.SIGKILL)
        writer.kill()
        await writer.wait()


async def text_of(store: Store, session: str, name: str = "file") -> str | None:
    found = await store.get(f"{session}/{name}")
    return None if found is None else found[0].decode()


async def test_a_geesefs_zombie_on_another_host_cannot_write_after_a_takeover(
    host_of: HostOf, geesefs: Path, session: str, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def sees_none(*_: object) -> int:
        return 0  # the other host's processes cannot be seen from here, let alone killed

    monkeypatch.setattr(Mounts, "end_strays", sees_none)
    old, _ = await host_of("geesefs", "one").ready(session)
    async with zombie_of(old) as zombie:
        taken, _ = await host_of("geesefs", "two").ready(session)
        await asyncio.to_thread(fsynced, taken.path / "file", "taken")
        assert (await zombie.wakes_and_stores()).startswith("refused")
        assert (await zombie.wakes_and_stores("new")).startswith("refused")
        assert processes.alive(zombie.daemon), "it was killed, and fenced by that alone"
        assert await text_of(store, session) == "taken"
        assert await text_of(store, session, "another") is None
    assert (taken.path / "file").read_text() == "taken"


async def test_a_weed_zombie_is_dead_before_another_mount_of_its_host_is_there(
    host_of: HostOf, session: str, store: Store
) -> None:
    """The filer knows no keys: only the end of the process is a fence, across data directories."""
    old, _ = await host_of("weed", "one").ready(session)
    async with zombie_of(old) as zombie:
        taken, _ = await host_of("weed", "two").ready(session)
        assert not processes.alive(zombie.daemon)
        await asyncio.to_thread(fsynced, taken.path / "file", "taken")
        assert (await zombie.wakes_and_stores()).startswith("refused")
        assert await text_of(store, session) == "taken"
    assert (taken.path / "file").read_text() == "taken"


@pytest.mark.parametrize("engines", [("weed", "geesefs"), ("geesefs", "weed")])
async def test_a_zombie_of_the_other_engine_is_shut_out_too(
    host_of: HostOf, geesefs: Path, session: str, store: Store, engines: tuple[str, str]
) -> None:
    old, _ = await host_of(engines[0], "one").ready(session)
    async with zombie_of(old) as zombie:
        taken, _ = await host_of(engines[1], "two").ready(session)
        await asyncio.to_thread(fsynced, taken.path / "file", "taken")
        assert (await zombie.wakes_and_stores()).startswith("refused")
        assert await text_of(store, session) == "taken"


async def test_a_frozen_daemon_of_the_same_host_is_replaced(
    durable: HostMounted, session: str, store: Store
) -> None:
    old, _ = await durable.ready(session)
    async with zombie_of(old) as zombie:
        report = await durable.remount(session, "hang: a test")
        assert (report.fresh, report.lost) == (True, "hang: a test")
        assert not processes.alive(zombie.daemon)
        taken = await durable.workspace(session)
        assert taken is not None
        assert (taken.path / "file").read_text() == await text_of(store, session) == "first"


async def test_a_daemon_whose_record_was_lost_is_found_and_ended(
    host_of: HostOf, engine: str, session: str, short_dir: Path
) -> None:
    stray, _ = await host_of(engine).ready(session)
    (short_dir / "data" / "mounts" / f"{session}.json").unlink()
    taken, report = await host_of(engine).ready(session)
    assert report.fresh
    assert not processes.alive(stray.mount.daemon)
    await taken.probe()


async def test_stopping_everything_ends_a_daemon_without_a_record(
    host_of: HostOf, engine: str, session: str, short_dir: Path
) -> None:
    stray, _ = await host_of(engine).ready(session)
    (short_dir / "data" / "mounts" / f"{session}.json").unlink()
    await Mounts(short_dir / "data").stop_all()
    assert not processes.alive(stray.mount.daemon)


async def test_no_process_is_ended_for_a_name_that_is_like_the_sessions(
    host_of: HostOf, engine: str
) -> None:
    host = host_of(engine)
    longer, _ = await host.ready("s-10")
    await host.ready("s-1")
    await host.release("s-1")
    assert longer.mount.alive()
    await longer.probe()


async def users(keys: SessionKeys, session: str) -> list[str]:
    return await keys._users(f"holdfast_{session}_")


def environment(mount: Mount) -> list[str]:
    return Path(f"/proc/{mount.daemon.pid}/environ").read_bytes().decode().split("\0")


async def test_every_mount_has_a_key_of_its_own_which_ends_with_it(
    host_of: HostOf, geesefs: Path, session: str, keys: SessionKeys, address: StoreAddress
) -> None:
    host = host_of("geesefs")
    first, _ = await host.ready(session)
    [one] = await users(keys, session)
    assert not [line for line in environment(first.mount) if address.secret_key in line]
    await host.remount(session)
    [two] = await users(keys, session)
    assert one != two
    await host.release(session, forget=True)
    assert await users(keys, session) == []


async def test_what_a_key_may_do_goes_with_it_also_when_only_its_user_went(
    keys: SessionKeys, session: str
) -> None:
    """A sidecar may die between the two."""
    prefix = f"holdfast_{session}_"
    await keys.grant(session, "one.host")
    assert await keys._policies(prefix) == await users(keys, session)
    await keys.revoke(session)
    assert await keys._policies(prefix) == []
    kept = await keys.grant(session, "another-host")
    left = await keys.grant(session, "one.host")
    await keys._iam.delete_user(UserName=left.user)
    await keys.sweep("one.host", mounted=())
    assert await keys._policies(prefix) == [kept.user]
    await keys.revoke(session)


async def test_a_weed_mount_is_given_no_key(
    host_of: HostOf, session: str, keys: SessionKeys, address: StoreAddress
) -> None:
    workspace, _ = await host_of("weed").ready(session)
    assert await users(keys, session) == []
    assert not [line for line in environment(workspace.mount) if address.secret_key in line]


async def test_at_start_a_host_revokes_its_own_keys_that_no_mount_uses(
    host_of: HostOf, geesefs: Path, keys: SessionKeys
) -> None:
    host, name = host_of("geesefs"), str(uuid.uuid4())
    used, unused, elsewhere = (f"{name}-{what}" for what in ("used", "unused", "elsewhere"))
    await host.ready(used)
    await keys.grant(unused, await host._mounts.name())
    await keys.grant(elsewhere, "another-host")
    assert await host.sweep() == 1
    assert await users(keys, unused) == []
    assert len(await users(keys, used)) == len(await users(keys, elsewhere)) == 1
    await keys.revoke(elsewhere)


async def test_nothing_is_mounted_when_the_earlier_key_cannot_be_revoked(
    host_of: HostOf, engine: str, session: str, keys: SessionKeys, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = host_of(engine)

    async def refuse(user: str) -> None:
        raise StoreUnavailable(f"{user} cannot be deleted")

    await keys.grant(session, "another-host")
    monkeypatch.setattr(keys, "_delete", refuse)
    with pytest.raises(StoreUnavailable):
        await host.ready(session)
    assert await host.workspace(session) is None
    assert await host._mounts.get(session) is None


async def test_a_store_that_goes_on_to_accept_a_key_is_an_error(
    host_of: HostOf, session: str, keys: SessionKeys, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = await keys.grant(session, "a-host")

    async def lie(user: str) -> None:
        await keys._iam.create_access_key(UserName=user)

    monkeypatch.setattr(keys, "_delete", lie)
    with pytest.raises(MountFailed, match=key.user):
        await keys.revoke(session)
    monkeypatch.undo()
    assert await keys.revoke(session) == 1


class Switch:
    """The store behind a port that can be shut."""

    def __init__(self, port: int) -> None:
        self._to = port
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.StreamWriter] = set()
        self.port = 0

    async def on(self) -> None:
        self._server = await asyncio.start_server(self._carry, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def off(self) -> None:
        assert self._server is not None
        self._server.close()
        for writer in self._open:
            writer.close()

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection("127.0.0.1", self._to)
        self._open |= {writer, back}
        async with asyncio.TaskGroup() as group:
            group.create_task(_pipe(reader, back))
            group.create_task(_pipe(there, writer))


async def _pipe(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError):
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
    writer.close()


@pytest.fixture
async def switch(address: StoreAddress) -> AsyncIterator[Switch]:
    opened = Switch(int(address.endpoint.rpartition(":")[2]))
    await opened.on()
    yield opened
    await opened.off()


def behind(switch: Switch, address: StoreAddress) -> StoreAddress:
    return replace(address, endpoint=f"http://127.0.0.1:{switch.port}")


async def test_a_store_that_is_away_is_waited_for(
    host_of: HostOf, engine: str, session: str, switch: Switch, address: StoreAddress
) -> None:
    host = host_of(engine)
    async with Store.open(behind(switch, address)) as store:
        host._store, host._manifests = store, Manifests(store.in_bucket("state"))
        await switch.off()
        mounting = asyncio.ensure_future(host.ready(session))
        done, _ = await asyncio.wait({mounting}, timeout=3)
        assert not done, "it gave up, or did not ask the store"
        await switch.on()
        async with asyncio.timeout(30):
            _, report = await mounting
        assert report.fresh


async def test_a_mount_is_not_condemned_for_a_store_that_is_away(
    host_of: HostOf, engine: str, session: str, switch: Switch, address: StoreAddress
) -> None:
    host = host_of(engine)
    workspace, _ = await host.ready(session)
    async with Store.open(behind(switch, address)) as store:
        host._store = workspace._store = store
        await switch.off()
        asking = asyncio.ensure_future(host.ready(session))
        done, _ = await asyncio.wait({asking}, timeout=3)
        assert not done
        await switch.on()
        async with asyncio.timeout(30):
            again, report = await asking
        assert (report.fresh, again.mount) == (False, workspace.mount)


async def test_a_daemon_that_cannot_reach_the_store_is_kept_until_the_store_is_back(
    host_of: HostOf,
    geesefs: Path,
    session: str,
    switch: Switch,
    address: StoreAddress,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It may hold what it could not store yet, and will."""
    monkeypatch.setattr(engines, "PROBE_SECONDS", 5)
    host = host_of("geesefs")
    away = behind(switch, address)
    daemons = {"geesefs": Geesefs(geesefs, away.endpoint, away.bucket)}
    assert isinstance(host._mounts, OwnMounts)
    host._mounts._daemons = daemons
    async with Store.open(behind(switch, address)) as store:
        host._store, host._manifests = store, Manifests(store.in_bucket("state"))
        workspace, _ = await host.ready(session)
        await switch.off()
        asking = asyncio.ensure_future(host.ready(session))
        done, _ = await asyncio.wait({asking}, timeout=12)
        assert not done
        await switch.on()
        async with asyncio.timeout(60):
            again, report = await asking
        assert (report.fresh, again.mount) == (False, workspace.mount)


async def test_a_store_that_stays_away_is_an_error_in_the_end(
    host_of: HostOf,
    session: str,
    switch: Switch,
    address: StoreAddress,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(host_mounted, "STORE_SECONDS", 1)
    host = host_of("weed")
    async with Store.open(behind(switch, address)) as store:
        host._store, host._manifests = store, Manifests(store.in_bucket("state"))
        await switch.off()
        with pytest.raises((StoreUnavailable, MountFailed)):
            await host.ready(session)
        await switch.on()


async def test_a_daemon_that_survives_is_an_error_and_nothing_is_mounted(
    host_of: HostOf, session: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = host_of("weed", "two")
    zombie, _ = await host_of("weed", "one").ready(session)

    def powerless(*_: object) -> bool:
        return False

    with monkeypatch.context() as patched:
        patched.setattr(processes, "kill", powerless)
        patched.setattr("sidecar.boxhost.mounts.KILL_SECONDS", 0.1)
        with pytest.raises(MountFailed, match="survived"):
            await host.ready(session)
    assert await host._mounts.get(session) is None
    await until(zombie.mount.alive, "the first mount is untouched")


async def test_an_agents_process_is_never_taken_for_a_daemon(tmp_path: Path) -> None:
    """Boxes have a PID namespace of their own, which is not looked into."""
    seconds = f"60.{secrets.randbelow(10**9):09}"
    apart = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--kill-child"]
    with process([*apart, "sleep", seconds], tmp_path / "log", end=signal.SIGKILL) as child:
        outside = child.pid

        def inside() -> list[int]:
            return [int(word) for word in children(outside)]

        await until(inside, "it has a child in a namespace of its own")
        found = processes.with_arguments(lambda argv: seconds in argv)
        assert [each.pid for each in found] == [outside]


def children(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
