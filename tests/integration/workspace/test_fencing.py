"""Who mounts a session shuts out whoever had it mounted before, on whichever host."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import signal
import sys
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from contracts.errors import MountFailed, StoreUnavailable
from contracts.redaction import Redactor
from sidecar.boxhost import processes
from sidecar.boxhost.daemons import Geesefs
from sidecar.boxhost.mounts import Mount, MountLimits, Mounts
from sidecar.workspace.boto_session import shared_session
from sidecar.workspace.engine import WorkspaceLimits
from sidecar.workspace.host_mounted import HostMounted, MountedWorkspace
from sidecar.workspace.iam import REGION, SessionKeys
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


@pytest.fixture
async def iam(address: StoreAddress) -> AsyncIterator[Any]:
    """The store's own word on who has a key."""
    async with shared_session().client(
        "iam",
        endpoint_url=address.endpoint,
        aws_access_key_id=address.access_key,
        aws_secret_access_key=address.secret_key,
        region_name=REGION,
    ) as client:
        yield client


async def users(iam: Any, session: str) -> list[str]:
    found = (await iam.list_users())["Users"]
    return [each["UserName"] for each in found if f"_{session}_" in each["UserName"]]


async def policies(iam: Any, session: str) -> list[str]:
    found = (await iam.list_policies())["Policies"]
    return [each["PolicyName"] for each in found if f"_{session}_" in each["PolicyName"]]


class Instead:
    """An IAM client that does something else when a user is to be deleted."""

    def __init__(self, iam: Any, delete_user: Callable[[str], Awaitable[None]]) -> None:
        self._iam = iam
        self._delete_user = delete_user

    def __getattr__(self, name: str) -> Any:
        return getattr(self._iam, name)

    async def delete_user(self, *, UserName: str) -> None:
        await self._delete_user(UserName)

    async def delete_policy(self, **_: str) -> None:
        """It goes with its user, which stays."""


@contextlib.asynccontextmanager
async def keys_by(iam: Any, address: StoreAddress) -> AsyncIterator[SessionKeys]:
    async with aiohttp.ClientSession() as http:
        yield SessionKeys(iam, http, address, Redactor())


def environment(mount: Mount) -> list[str]:
    return Path(f"/proc/{mount.daemon.pid}/environ").read_bytes().decode().split("\0")


async def test_every_mount_has_a_key_of_its_own_which_ends_with_it(
    host_of: HostOf, geesefs: Path, session: str, iam: Any, address: StoreAddress
) -> None:
    host = host_of("geesefs")
    first, _ = await host.ready(session)
    [one] = await users(iam, session)
    assert not [line for line in environment(first.mount) if address.secret_key in line]
    await host.remount(session)
    [two] = await users(iam, session)
    assert one != two
    await host.release(session, forget=True)
    assert await users(iam, session) == []


async def test_what_a_key_may_do_goes_with_it_also_when_only_its_user_went(
    keys: SessionKeys, iam: Any, session: str
) -> None:
    """A sidecar may die between the two."""
    await keys.grant(session, "one.host")
    assert await policies(iam, session) == await users(iam, session) != []
    await keys.revoke(session)
    assert await policies(iam, session) == []
    kept = await keys.grant(session, "another-host")
    left = await keys.grant(session, "one.host")
    await iam.delete_user(UserName=left.user)
    await keys.sweep("one.host", mounted=())
    assert await policies(iam, session) == [kept.user]
    await keys.revoke(session)


async def test_a_weed_mount_is_given_no_key(
    host_of: HostOf, session: str, iam: Any, address: StoreAddress
) -> None:
    workspace, _ = await host_of("weed").ready(session)
    assert await users(iam, session) == []
    assert not [line for line in environment(workspace.mount) if address.secret_key in line]


async def test_at_start_a_host_revokes_its_own_keys_that_no_mount_uses(
    host_of: HostOf, geesefs: Path, short_dir: Path, keys: SessionKeys, iam: Any
) -> None:
    host, name = host_of("geesefs"), str(uuid.uuid4())
    used, unused, elsewhere = (f"{name}-{what}" for what in ("used", "unused", "elsewhere"))
    await host.ready(used)
    await keys.grant(unused, Mounts(short_dir / "data").host())
    await keys.grant(elsewhere, "another-host")
    assert await host.sweep() == 1
    assert await users(iam, unused) == []
    assert len(await users(iam, used)) == len(await users(iam, elsewhere)) == 1
    await keys.revoke(elsewhere)


async def test_nothing_is_mounted_when_the_earlier_key_cannot_be_revoked(
    host_of: HostOf,
    engine: str,
    session: str,
    keys: SessionKeys,
    iam: Any,
    address: StoreAddress,
    short_dir: Path,
) -> None:
    async def refuse(user: str) -> None:
        raise ConnectionError(f"{user} cannot be deleted")

    await keys.grant(session, "another-host")
    async with keys_by(Instead(iam, refuse), address) as powerless:
        host = host_of(engine, keys=powerless)
        with pytest.raises(StoreUnavailable):
            await host.ready(session)
    assert await host.workspace(session) is None
    assert Mounts(short_dir / "data").get(session) is None
    await keys.revoke(session)


async def test_a_store_that_goes_on_to_accept_a_key_is_an_error(
    session: str, keys: SessionKeys, iam: Any, address: StoreAddress
) -> None:
    key = await keys.grant(session, "a-host")

    async def lie(user: str) -> None:
        await iam.create_access_key(UserName=user)

    async with keys_by(Instead(iam, lie), address) as lied_to:
        with pytest.raises(MountFailed, match=key.user):
            await lied_to.revoke(session)
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


class Watched(Store):
    """Counts how often it was found to be away."""

    away = 0

    async def answers(self) -> bool:
        there = await super().answers()
        self.away += not there
        return there


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
    async with Watched.open(behind(switch, address)) as store:
        host = host_of(engine, store=store, manifests=Manifests(store.in_bucket("state")))
        await switch.off()
        mounting = asyncio.ensure_future(host.ready(session))
        await until(lambda: store.away >= 2, "it asks the store again and again", within=60)
        assert not mounting.done(), "it gave up"
        await switch.on()
        async with asyncio.timeout(30):
            _, report = await mounting
        assert report.fresh


async def test_a_mount_is_not_condemned_for_a_store_that_is_away(
    host_of: HostOf, engine: str, session: str, switch: Switch, address: StoreAddress
) -> None:
    async with Watched.open(behind(switch, address)) as store:
        host = host_of(engine, store=store)
        workspace, _ = await host.ready(session)
        await switch.off()
        asking = asyncio.ensure_future(host.ready(session))
        await until(lambda: store.away >= 2, "it asks the store again and again", within=60)
        assert not asking.done()
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
) -> None:
    """It may hold what it could not store yet, and will."""
    away = behind(switch, address)
    async with Watched.open(away) as store:
        host = host_of(
            "geesefs",
            store=store,
            manifests=Manifests(store.in_bucket("state")),
            daemons={"geesefs": Geesefs(geesefs, away.endpoint, away.bucket)},
            limits=WorkspaceLimits(probe=5),
        )
        workspace, _ = await host.ready(session)
        await switch.off()
        asking = asyncio.ensure_future(host.ready(session))
        await until(lambda: store.away >= 2, "it asks the store again and again", within=90)
        assert not asking.done()
        await switch.on()
        async with asyncio.timeout(60):
            again, report = await asking
        assert (report.fresh, again.mount) == (False, workspace.mount)


async def test_a_store_that_stays_away_is_an_error_in_the_end(
    host_of: HostOf, session: str, switch: Switch, address: StoreAddress
) -> None:
    async with Store.open(behind(switch, address)) as store:
        host = host_of(
            "weed",
            store=store,
            manifests=Manifests(store.in_bucket("state")),
            limits=WorkspaceLimits(store=1),
        )
        await switch.off()
        with pytest.raises((StoreUnavailable, MountFailed)):
            await host.ready(session)
        await switch.on()


async def test_a_daemon_that_survives_is_an_error_and_nothing_is_mounted(
    host_of: HostOf, session: str, short_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = host_of("weed", "two", mount_limits=MountLimits(kill=0.1))
    zombie, _ = await host_of("weed", "one").ready(session)

    def powerless(*_: object) -> bool:
        return False

    with monkeypatch.context() as patched:
        patched.setattr(processes, "kill", powerless)
        with pytest.raises(MountFailed, match="survived"):
            await host.ready(session)
    assert Mounts(short_dir / "two").get(session) is None
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
