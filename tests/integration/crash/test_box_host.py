"""A box-host may be killed at every write, start and signal of its own: the next one knows all that
it left, and has the rest ended."""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from sidecar.boxhost import freezer, processes
from sidecar.boxhost.boxes import ETC, HOME, KEEPER, RECORD, Box
from sidecar.boxhost.contract import BoxCommand
from sidecar.boxhost.daemons import serving
from sidecar.boxhost.in_process import OwnHost
from sidecar.boxhost.mounts import Mount
from sidecar.boxhost.processes import ProcessId
from sidecar.boxhost.uids import Uids
from sidecar.workspace.store import StoreAddress
from stack.install.binaries import find_weed
from stack.settings import Settings
from tests.support.crash.host_process import (
    BOX,
    BUCKET,
    ENGINE,
    SESSION,
    Forker,
    Order,
    open_forker,
)
from tests.support.crash.table import Row, Table
from tests.support.services import SeaweedFS, until

# More than any life has.
MOST_POINTS = 120
FIFO, HEARD = "fifo", "heard"
ECHO = f"mkfifo {FIFO}; exec <>{FIFO}; while read n; do echo $n > {HEARD}; done"

Record = Callable[[str, Any], None]


@dataclass
class World:
    """What is around a box-host."""

    forker: Forker
    order: Order

    @property
    def home(self) -> Path:
        return Path(self.order.home)

    @property
    def place(self) -> Path:
        return self.home / "data/boxes" / BOX

    @property
    def mountpoint(self) -> Path:
        return self.home / "data/mounts" / SESSION / "workspace"

    async def die_everywhere(
        self,
        what: str,
        prepare: Callable[[OwnHost], Awaitable[None]],
        recover: Callable[[OwnHost], Awaitable[None]],
    ) -> None:
        """Let a box-host live until it dies at its first point; then another one, in a directory
        of its own, until the second; and so on, until one comes to its end."""
        for at in itertools.count(1):
            assert at < MOST_POINTS
            await self.reset()
            await prepare(self.order.host())
            died = await self.forker.live(replace(self.order, what=what, at=at))
            await recover(self.order.host())
            if not died:
                return

    async def reset(self) -> None:
        """End all that runs, and prove it; then an empty directory."""
        host = self.order.host()
        uid = Uids(self.home / "data").of(SESSION)
        await host.kept.stop_all()
        await host.served.stop_all()
        assert self.keepers() == self.daemons() == []
        if uid is not None:
            await until(lambda: not has_processes(uid), "nothing of the session runs")
        for path in self.home.iterdir():
            shutil.rmtree(path)

    def keepers(self) -> list[ProcessId]:
        return processes.with_arguments(is_keeper_of(self.place))

    def daemons(self) -> list[ProcessId]:
        return processes.with_arguments(serving(BUCKET, SESSION))


def is_keeper_of(place: Path) -> Callable[[Sequence[str]], bool]:
    return lambda argv: list(argv[-2:]) == [KEEPER, str(place)]


def has_processes(uid: int) -> bool:
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(FileNotFoundError):
            if path.stat().st_uid == uid and processes.identify(int(path.name)) is not None:
                return True
    return False


@pytest.fixture
async def world(short_dir: Path, bwrap: Path) -> AsyncIterator[World]:
    async with open_forker() as forker:
        opened = World(forker, Order("", str(short_dir), str(bwrap)))
        yield opened
        try:
            await opened.reset()
        finally:
            for process in (*opened.keepers(), *opened.daemons()):
                processes.kill(process)


async def nothing(_: OwnHost) -> None: ...


async def has_box(host: OwnHost, order: Order) -> Box:
    return await host.boxes.start(order.spec())


NO_BOX = Row("box-host, starting a box", "before it is begun", "nothing happened; asked again")
NO_KEEPER = Row("box-host, starting a box", "directory there, no process", "cleared; made anew")
UNRECORDED = Row(
    "box-host, starting a box", "processes there, record not", "found by its argument and ended"
)
RECORDED = Row("box-host, starting a box", "record written", "lives on; asked again, it is the one")


async def test_a_box_host_dies_at_every_point_of_a_start(
    world: World, record_property: Record
) -> None:
    table = Table()

    async def recover(host: OwnHost) -> None:
        known = host.kept.get(BOX)
        row = NO_BOX if not world.place.exists() else RECORDED if known else NO_KEEPER
        if row is NO_KEEPER and world.keepers():
            row = UNRECORDED
        with table.died(row, 1):
            await host.clear_leftovers()
            assert world.keepers() == ([known.keeper] if known else [])
            assert world.place.exists() == (known is not None)
            box = await has_box(host, world.order)
            assert box.alive()
            assert known in (None, box)
            assert world.keepers() == [box.keeper]
            assert await read_etc(host, box) == "".join(ETC.values())

    await world.die_everywhere("start", nothing, recover)
    table.hand_over(record_property, {NO_BOX, NO_KEEPER, UNRECORDED, RECORDED})


async def read_etc(host: OwnHost, box: Box) -> str:
    """What the box's user reads there."""
    argv = ["cat", *(f"/etc/{name}" for name in ETC)]
    ran = await host.boxes.exec(box, BoxCommand(argv, "/", timeout=10))
    return (ran.stdout + ran.stderr).decode()


ALIVE = Row(
    "box-host, ending a box", "before a process is killed", "lives on; asked again, it ends"
)
DEAD = Row("box-host, ending a box", "processes gone, record there", "cleared")
REMOVING = Row("box-host, ending a box", "record gone, directory there", "cleared")
GONE = Row("box-host, ending a box", "directory gone", "nothing is left to do")


async def test_a_box_host_dies_at_every_point_of_a_kill(
    world: World, record_property: Record
) -> None:
    """Of a frozen box: that has most to clear away."""
    table = Table()
    cgroups: list[Path] = []

    async def prepare(host: OwnHost) -> None:
        box = await make_echoing(host, world.order)
        await host.boxes.freeze(box)
        way = freezer._read_record(world.place)
        cgroups[:] = [way.path] if isinstance(way, freezer.Cgroup) else []

    async def recover(host: OwnHost) -> None:
        known = host.kept.get(BOX)
        row = ALIVE if known and known.alive() else DEAD if known else REMOVING
        with table.died(row if world.place.exists() else GONE, 1):
            await host.clear_leftovers()
            await host.boxes.kill(BOX)
            check_nothing_left(world)
            assert not any(path.exists() for path in cgroups)

    await world.die_everywhere("kill", prepare, recover)
    table.hand_over(record_property, {ALIVE, DEAD, REMOVING, GONE})


CLEARING = Row("box-host, at its start", "a box has no record, it is there", "cleared by the next")
CLEARED = Row("box-host, at its start", "directory gone", "nothing is left to do")


async def test_a_box_host_dies_at_every_point_of_clearing_up(
    world: World, record_property: Record
) -> None:
    table = Table()

    async def prepare(host: OwnHost) -> None:
        await has_box(host, world.order)
        (world.place / RECORD).unlink()

    async def recover(host: OwnHost) -> None:
        with table.died(CLEARING if world.place.exists() else CLEARED, 1):
            await host.clear_leftovers()
            check_nothing_left(world)

    await world.die_everywhere("clear", prepare, recover)
    table.hand_over(record_property, {CLEARING, CLEARED})


def check_nothing_left(world: World) -> None:
    """Of a box."""
    assert world.keepers() == []
    assert not world.place.exists()
    assert list((world.home / "run/boxes").iterdir()) == []


async def make_echoing(host: OwnHost, order: Order) -> Box:
    """A box with a process that answers, unless it is frozen."""
    box = await has_box(host, order)
    env = {"PATH": "/usr/bin:/bin", "HOME": HOME}
    await host.boxes.spawn(box, BoxCommand(["sh", "-c", ECHO], HOME, env))
    await until((host.kept.home(BOX) / FIFO).is_fifo, "the process listens")
    return box


def is_frozen(host: OwnHost, box: Box, place: Path) -> bool:
    """Whether any process is, or will be as soon as it runs."""
    way = freezer._read_record(place)
    if isinstance(way, freezer.Cgroup):
        return way.path.exists() and (way.path / way.switch).read_text().strip() != way.off
    return any("T" in processes.thread_states(each.id.pid) for each in host.kept.processes(box))


FREEZING = "box-host, freezing a box"
THAWING = "box-host, thawing a box"
RUNNING, FROZEN = "nothing is frozen", "something is frozen"


@pytest.mark.parametrize("signals", [False, True], ids=["cgroup", "signals"])
async def test_a_box_host_dies_at_every_point_of_a_freeze_and_a_thaw(
    world: World, signals: bool, record_property: Record
) -> None:
    table = Table()
    order = replace(world.order, signals=signals)
    host = order.host()
    box = await make_echoing(host, order)
    said = itertools.count(1)

    async def recover(who: str) -> None:
        where = FROZEN if is_frozen(host, box, world.place) else RUNNING
        with table.died(Row(who, where, "goes on when the sidecar has it thawed"), 1):
            later = order.host()
            await later.clear_leftovers()
            await later.boxes.thaw_all()
            await check_answers(later, str(next(said)))
            assert later.kept.all() == [box]

    for who, what in ((FREEZING, "freeze"), (THAWING, "thaw")):
        for at in itertools.count(1):
            assert at < MOST_POINTS
            if what == "thaw":
                assert not await world.forker.live(replace(order, what="freeze"))
            died = await world.forker.live(replace(order, what=what, at=at))
            await recover(who)
            if not died:
                break
    expected = {Row(who, where, "") for who in (FREEZING, THAWING) for where in (RUNNING, FROZEN)}
    table.hand_over(record_property, expected)


async def check_answers(host: OwnHost, word: str) -> None:
    home = host.kept.home(BOX)
    fd = os.open(home / FIFO, os.O_WRONLY | os.O_NONBLOCK)
    try:
        os.write(fd, f"{word}\n".encode())
    finally:
        os.close(fd)
    heard = home / HEARD
    await until(lambda: heard.exists() and heard.read_text().strip() == word, "it answers")


@pytest.fixture
def serving_world(
    world: World, fuse: None, address: StoreAddress, store_service: SeaweedFS
) -> World:
    weed = str(find_weed(Settings()))
    world.order = replace(world.order, weed=weed, filer=store_service.filer)
    assert address.bucket == BUCKET
    return world


NO_DAEMON = Row("box-host, mounting", "before the daemon is started", "nothing; mounted when asked")
STRAY = Row("box-host, mounting", "daemon there, record not", "found by its arguments and ended")
MOUNTED = Row(
    "box-host, mounting", "record written", "ended unless it is in place; mounted when asked"
)


async def test_a_box_host_dies_at_every_point_of_a_mount(
    serving_world: World, record_property: Record
) -> None:
    table, world = Table(), serving_world

    async def recover(host: OwnHost) -> None:
        known = host.served.get(SESSION)
        row = MOUNTED if known else STRAY if world.daemons() else NO_DAEMON
        with table.died(row, 1):
            await host.clear_leftovers()
            check_known(world, host)
            mount = await host.mounts.mount(SESSION, ENGINE, None, None)
            assert mount.alive()
            assert check_known(world, host) == mount
            assert count_mounts(world.mountpoint) == 1
            if os.geteuid() == 0:
                assert is_shared(world.mountpoint.parents[1])

    await world.die_everywhere("mount", nothing, recover)
    table.hand_over(record_property, {NO_DAEMON, STRAY, MOUNTED})


SERVED = Row(
    "box-host, forgetting a mount", "before it is let go", "lives on; asked again, it ends"
)
LOOSE = Row("box-host, forgetting a mount", "mount or daemon gone, record there", "cleared")
LEFT = Row("box-host, forgetting a mount", "record gone", "asked again, the rest goes")


async def test_a_box_host_dies_at_every_point_of_forgetting_a_mount(
    serving_world: World, record_property: Record
) -> None:
    table, world = Table(), serving_world

    async def prepare(host: OwnHost) -> None:
        await host.mounts.mount(SESSION, ENGINE, None, None)

    async def recover(host: OwnHost) -> None:
        known = host.served.get(SESSION)
        with table.died(SERVED if known and known.alive() else LOOSE if known else LEFT, 1):
            await host.clear_leftovers()
            check_known(world, host)
            await host.mounts.forget(SESSION)
            assert world.daemons() == []
            assert host.served.get(SESSION) is None
            assert not world.mountpoint.parent.exists()
            assert not any((world.home / "data/logs").iterdir())
            assert not (world.home / "data/uids" / SESSION).exists()

    await world.die_everywhere("forget", prepare, recover)
    table.hand_over(record_property, {SERVED, LOOSE, LEFT})


def check_known(world: World, host: OwnHost) -> Mount | None:
    """No daemon and no mount is there that has no record."""
    known = host.served.get(SESSION)
    assert world.daemons() == ([known.daemon] if known else [])
    assert count_mounts(world.mountpoint) == (1 if known else 0)
    return known


def count_mounts(path: Path) -> int:
    return sum(line.split()[4] == str(path) for line in read_mounts())


def is_shared(path: Path) -> bool:
    (line,) = (each for each in read_mounts() if each.split()[4] == str(path))
    return "shared:" in line


def read_mounts() -> list[str]:
    return Path("/proc/self/mountinfo").read_text().splitlines()
