"""Stops every process of a box, and lets them go on, from outside.

By a cgroup of the box's own where one can be made (version 2, or the freezer of version 1),
otherwise by SIGSTOP. Processes are put into the cgroup when they are frozen, because what enters a
box is born outside of it. The box's first two processes are left alone: one reaps, the other
sleeps, and a command that is run in a frozen box needs them.

A list of processes says little where they fork: by the time it is read, another one runs. So a
freeze counts only when it is proven: two looks in a row find the same processes, all of them
frozen, and from before the first until after the second no pid was given out. Two looks, because a
fork has taken its pid before its child can be seen.

What it takes to thaw is on disk before anything is frozen: a successor thaws what a crash left.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import hashlib
import itertools
import json
import logging
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from sidecar.boxhost import processes
from sidecar.boxhost.processes import ProcessId
from sidecar.record_files import read_record, write_record

log = logging.getLogger(__name__)

# A call into a mount whose store is away comes back after at most 30 s; until then its process
# can be neither frozen nor killed.
FREEZE_SECONDS = 60
POLL_SECONDS = 0.005
REMOVE_SECONDS = 1
PROBE_SECONDS = 10
# After that many rounds that freeze one process after the other, one that takes all at once.
ROUNDS_IN_ORDER = 4
LAST_PID = str(Path(__file__).with_name("last_pid.py"))
RECORD = "freezer.json"
FIRST_TWO = 2
_NS_GET_PARENT = 0xB702
# No cgroup to be had here: read-only, not ours, not empty, not allowed.
NO_CGROUP = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOENT, errno.EBUSY, errno.EOPNOTSUPP)


class FreezeFailed(Exception):
    """A process would not stop."""


class Way(Protocol):
    """One way to freeze processes."""

    def record(self) -> dict[str, Any]:
        """What a successor needs to thaw."""
        ...

    def add(self, found: list[ProcessId], *, at_once: bool) -> bool:
        """Freeze these; whether any was not on its way to be frozen already. `at_once`: those that
        they fork meanwhile, too, if it takes more to do so."""
        ...

    def frozen(self, found: list[ProcessId]) -> bool: ...

    def thaw(self) -> None: ...


@dataclass
class Cgroup:
    """A cgroup of the box's own. `switch` holds `on` while it freezes what is in it."""

    path: Path
    switch: str
    on: str
    off: str

    def record(self) -> dict[str, Any]:
        return {"path": str(self.path), "switch": self.switch, "on": self.on, "off": self.off}

    def add(self, found: list[ProcessId], *, at_once: bool) -> bool:
        self.path.mkdir(exist_ok=True)
        # First the switch: what joins a frozen cgroup is frozen, with no moment to fork in.
        (self.path / self.switch).write_text(self.on)
        inside = {int(pid) for pid in (self.path / "cgroup.procs").read_text().split()}
        new = [process for process in found if process.pid not in inside]
        for process in new:
            # Each move holds up every fork of the host; who is about to end is waited for instead.
            if processes.is_exiting(process.pid):
                continue
            with contextlib.suppress(ProcessLookupError):
                (self.path / "cgroup.procs").write_text(str(process.pid))
        return bool(new)

    def frozen(self, found: list[ProcessId]) -> bool:
        if self.switch == "cgroup.freeze":
            return "frozen 1" in (self.path / "cgroup.events").read_text()
        return (self.path / self.switch).read_text().strip() == self.on

    def thaw(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            (self.path / self.switch).write_text(self.off)


@dataclass
class Signals:
    """SIGSTOP. A parent has stopped before its children are told to, and wakes after them: it
    never sees them stopped, and a vforked child gets to the exec that its parent waits for. What
    was stopped before us stays so."""

    place: Path
    stopped: list[ProcessId] = field(default_factory=list)
    stopped_by_others: set[ProcessId] = field(default_factory=set)
    stopped_groups: bool = False

    def record(self) -> dict[str, Any]:
        return {"stopped": [[process.pid, process.started] for process in self.stopped]}

    def add(self, found: list[ProcessId], *, at_once: bool) -> bool:
        running = {process.pid: process for process in found if not _stopped(process)}
        still = [process for process in found if process.pid not in running]
        self.stopped_by_others.difference_update(running.values())
        if not self.stopped_groups:
            self.stopped_by_others.update(set(still).difference(self.stopped))
        now = [
            process for pid, process in running.items() if processes.parent_pid(pid) not in running
        ]
        mine = {*self.stopped, *self.stopped_by_others}
        # Those that a signal to their group has stopped although no look had found them, too.
        new = [process for process in (*now, *still) if process not in mine]
        if new:
            self.stopped += new
            _write_record(self.place, self)
        if at_once and running:
            self._stop_groups(found, running)
        for process in now:
            processes.kill(process, signal.SIGSTOP)
        return bool(running)

    def _stop_groups(self, found: list[ProcessId], running: Mapping[int, ProcessId]) -> None:
        """The kernel lets nobody fork out of a group that it signals."""
        self.stopped_groups = True
        inside = {process.pid for process in found}
        for group in {processes.group_of(pid) for pid in running}:
            # One that leads from outside is about to enter the box: its group is not the box's.
            if group > 1 and (group in inside or processes.identify(group) is None):
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(group, signal.SIGSTOP)

    def frozen(self, found: list[ProcessId]) -> bool:
        return all(_stopped(process) for process in found)

    def thaw(self) -> None:
        for process in reversed(self.stopped):
            processes.kill(process, signal.SIGCONT)
        self.stopped.clear()


async def freeze(
    place: Path, first: ProcessId, pid_namespace: int, seconds: float = FREEZE_SECONDS
) -> None:
    """Every process of the namespace and of those within it is stopped when this returns; when it
    raises, none is. `place` is the box's directory, `seconds` how long processes may take.

    Raises: FreezeFailed.
    """
    for way in ways(place, first):
        try:
            _write_record(place, way)
            await _freeze(way, first, pid_namespace, seconds)
        except OSError as error:
            thaw(place)
            if not processes.alive(first):
                raise FreezeFailed("the box is gone") from error
            if error.errno not in NO_CGROUP:
                raise FreezeFailed(f"the box cannot be frozen: {error}") from error
            remove_cgroup(place)
        except BaseException:
            thaw(place)
            raise
        else:
            return


async def _freeze(way: Way, first: ProcessId, pid_namespace: int, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    async with contextlib.AsyncExitStack() as stack:
        births: Births = HostBirths()
        for turn in itertools.count(1):
            # Only the look at /proc leaves this thread: a cancellation must not be overtaken by a
            # thread that freezes.
            last = await births.last_pid()
            found = await _look(pid_namespace, births)
            at_once = turn % (ROUNDS_IN_ORDER + 1) == 0
            if not way.add(found, at_once=at_once) and way.frozen(found):
                again = await _look(pid_namespace, births)
                if set(again) == set(found) and way.frozen(again):
                    if await births.last_pid() == last:
                        return
                    # The host's pids say nothing while others on it fork.
                    if isinstance(births, HostBirths):
                        births = await stack.enter_async_context(births_in_box(first))
            if not processes.alive(first):
                raise FreezeFailed("the box is gone")
            if time.monotonic() > deadline:
                raise FreezeFailed(f"not frozen after {seconds:g} s: {_who(found)}")
            await asyncio.sleep(POLL_SECONDS)


async def _look(pid_namespace: int, births: Births) -> list[ProcessId]:
    found = await asyncio.to_thread(lambda: list(_members(pid_namespace)))
    return [process for process in found if process.pid != births.own_pid]


class Births(Protocol):
    """Tells whether a process was born. `own_pid` is one in the box that is not the box's, or 0."""

    @property
    def own_pid(self) -> int: ...

    async def last_pid(self) -> str:
        """The last pid that was given out, also to what is within a box. Raises: FreezeFailed."""
        ...


class HostBirths:
    """On all of the host, or the container we run in: every pid of a box is one of ours, too."""

    own_pid = 0

    async def last_pid(self) -> str:
        with open("/proc/loadavg", encoding="ascii") as file:  # noqa: ASYNC230, PTH123 - a few bytes of the kernel's
            return file.read().split()[4]


@dataclass
class BoxBirths:
    """In one box."""

    process: asyncio.subprocess.Process
    own_pid: int = 0

    async def last_pid(self) -> str:
        assert self.process.stdin is not None
        with contextlib.suppress(ConnectionError):  # the answer says so
            self.process.stdin.write(b"\n")
            await self.process.stdin.drain()
        return await self.read_pid()

    async def read_pid(self) -> str:
        """Raises: FreezeFailed."""
        assert self.process.stdout is not None
        line = b""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(PROBE_SECONDS):
                line = await self.process.stdout.readline()
        if not line.strip().isdigit():
            raise FreezeFailed("the box's pids cannot be read")
        return line.decode().strip()


@contextlib.asynccontextmanager
async def births_in_box(first: ProcessId) -> AsyncIterator[BoxBirths]:
    """Raises: FreezeFailed."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-I", "-S", LAST_PID, str(first.pid)),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        env={"PATH": "/usr/bin:/bin"},
    )
    births = BoxBirths(process)
    try:
        births.own_pid = int(await births.read_pid())
        yield births
    finally:
        assert process.stdin is not None
        process.stdin.close()  # it ends with it
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(PROBE_SECONDS):
                await process.wait()


def thaw(place: Path) -> bool:
    """Let the box's processes go on; False if none was ever frozen. Idempotent."""
    way = _read_record(place)
    if way is None:
        return False
    way.thaw()
    try:
        _write_record(place, way)
    except FileNotFoundError:
        pass  # the box is being removed
    except OSError as error:  # whoever reads the old one thaws what runs already
        log.warning("cannot note that box %s is thawed: %s", place.name, error)
    return True


async def remove(place: Path) -> None:
    """After the box's end: take its cgroup away."""
    deadline = time.monotonic() + REMOVE_SECONDS
    while not remove_cgroup(place):
        if time.monotonic() > deadline:
            log.warning("the cgroup of %s is still in use", place.name)
            return
        await asyncio.sleep(POLL_SECONDS)


def remove_cgroup(place: Path) -> bool:
    """Whether the box has no cgroup any more."""
    way = _read_record(place)
    if isinstance(way, Cgroup):
        try:
            way.path.rmdir()
        except FileNotFoundError:
            return True
        except OSError:  # a process that is dead and not yet reaped is still in it
            return False
    return True


def ways(place: Path, first: ProcessId) -> Iterator[Way]:
    """How this box can be frozen, the best first."""
    name = f"holdfast-{hashlib.sha256(str(place.resolve()).encode()).hexdigest()[:16]}"
    second: list[Way] = []
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        fields, _, rest = line.partition(" - ")
        root, mountpoint = fields.split()[3:5]
        kind, _, options = rest.split()[:3]
        if kind == "cgroup2":
            # The first process stays where it is, so that its cgroup is our place for ever, and
            # what limits the box goes on to limit it.
            for parent in _cgroup_of(first, "", root, mountpoint):
                yield Cgroup(parent / name, "cgroup.freeze", "1", "0")
        if kind == "cgroup" and "freezer" in options.split(","):
            for parent in _cgroup_of(first, "freezer", root, mountpoint):
                second.append(Cgroup(parent / name, "freezer.state", "FROZEN", "THAWED"))
    yield from second
    yield Signals(place)


def _cgroup_of(process: ProcessId, controller: str, root: str, mountpoint: str) -> Iterator[Path]:
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        for line in Path(f"/proc/{process.pid}/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if controller in controllers.split(",") and path.startswith(root):
                yield Path(mountpoint) / path.removeprefix(root).lstrip("/")


def _members(pid_namespace: int) -> Iterator[ProcessId]:
    """Every living process of the namespace but its first two, and of namespaces within it."""
    wanted = f"pid:[{pid_namespace}]"
    known = {wanted: True, os.readlink("/proc/self/ns/pid"): False}  # noqa: PTH115
    for name in os.listdir("/proc"):  # noqa: PTH208 - every process of the host, at each barrier
        if not name.isdigit():
            continue
        try:
            link = os.readlink(f"/proc/{name}/ns/pid")  # noqa: PTH115
            if link not in known:
                known[link] = _is_within(f"/proc/{name}/ns/pid", pid_namespace)
            if not known[link]:
                continue
            process = processes.identify(int(name))
            inner = processes.inner_pid(int(name))
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue
        if process is not None and (link != wanted or inner > FIRST_TWO):
            yield process


def _is_within(namespace: str, outer: int) -> bool:
    fd = os.open(namespace, os.O_RDONLY | os.O_CLOEXEC)
    try:
        while os.fstat(fd).st_ino != outer:
            try:
                parent = fcntl.ioctl(fd, _NS_GET_PARENT)
            except PermissionError:  # above our own
                return False
            os.close(fd)
            fd = parent
        return True
    finally:
        os.close(fd)


def _stopped(process: ProcessId) -> bool:
    """Whether no thread of it runs; one that is gone does not."""
    return all(state in "TtZX" for state in processes.thread_states(process.pid))


def _who(found: list[ProcessId]) -> str:
    told = []
    for process in found:
        states = processes.thread_states(process.pid)
        if not _stopped(process):
            told.append(f"{processes.command(process.pid)} ({process.pid}, state {states})")
    return ", ".join(told[:5]) or "they multiply"


def _write_record(place: Path, way: Way) -> None:
    write_record(place / RECORD, json.dumps(way.record()))


def _read_record(place: Path) -> Way | None:
    def parse(record: dict[str, Any]) -> Way:
        if "path" in record:
            return Cgroup(Path(record["path"]), record["switch"], record["on"], record["off"])
        return Signals(place, [ProcessId(*pair) for pair in record["stopped"]])

    return read_record(place / RECORD, parse)
