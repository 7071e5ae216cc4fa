"""Stops every process of a box in its tracks, and lets them go on.

By the freezer of cgroups: version 1's, or version 2. Every process of a box is in the box's cgroup
from its start. Where no cgroup can be made, by SIGSTOP.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol

from emulators import ownership, process_table
from emulators.boxes import BoxFailed

log = logging.getLogger(__name__)

FREEZE_SECONDS = 20
REMOVE_SECONDS = 5
POLL_SECONDS = 0.005


class Freezer(Protocol):
    async def freeze(self) -> None:
        """Raises: BoxFailed; then nothing is frozen."""
        ...

    def thaw(self) -> None:
        """Idempotent."""
        ...

    async def remove(self) -> None:
        """After the end of the box's processes."""
        ...


def freezer_of(pid: int) -> Path | None:
    """The cgroup directory by which this process can be frozen; None when there is none to see.

    Raises: FileNotFoundError, ProcessLookupError.
    """
    return next(_cgroups_of(pid), None)


def make_freezer(name: str, pid: int, pid_namespace: int) -> Freezer:
    """A freezer of a box's own, which its processes, that is `pid` and what it has started, are put
    into; its later ones have to be born in the cgroup of `pid`."""
    for parent in _cgroups_of(pid):
        made = parent / name
        try:
            made.mkdir()
            (made / "cgroup.procs").write_text(str(pid))
            for each in process_table.members(pid_namespace):
                with contextlib.suppress(ProcessLookupError):
                    (made / "cgroup.procs").write_text(str(each.pid))
        except OSError:  # read-only, not ours, or of a kind that takes no processes
            with contextlib.suppress(OSError):
                made.rmdir()
        else:
            return _Cgroup(made)
    return _Signals(pid_namespace)


async def remove_freezers(chosen: Callable[[str], bool]) -> None:
    """Remove those of emulators that are `chosen`, with what is in them: a box dies with its
    emulator, but a frozen one only when it is thawed."""
    for parent in _cgroups_of(os.getpid()):
        for path in parent.glob(f"{ownership.MARK}.*"):
            owner = ownership.owner_in(path.name)
            if owner is not None and chosen(owner):
                left = _Cgroup(path)
                left.thaw()
                try:
                    await left.remove()
                except BoxFailed as error:  # no reason for this emulator not to start
                    log.warning("left behind by a dead emulator: %s", error)


class _Cgroup:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._second = (path / "cgroup.freeze").exists()

    async def freeze(self) -> None:
        self._switch(on=True)
        deadline = asyncio.get_running_loop().time() + FREEZE_SECONDS
        while not self._frozen():
            if asyncio.get_running_loop().time() > deadline:
                self.thaw()
                raise BoxFailed(f"not frozen after {FREEZE_SECONDS} s")
            await asyncio.sleep(POLL_SECONDS)

    def thaw(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            self._switch(on=False)

    async def remove(self) -> None:
        deadline = asyncio.get_running_loop().time() + REMOVE_SECONDS
        while self._path.exists():
            # busy while what has died in it is not reaped; gone when somebody else was faster
            with contextlib.suppress(OSError):
                self._path.rmdir()
                return
            if asyncio.get_running_loop().time() > deadline:
                raise BoxFailed(f"the cgroup {self._path} is still in use")
            await asyncio.sleep(POLL_SECONDS)

    def _switch(self, *, on: bool) -> None:
        if self._second:
            (self._path / "cgroup.freeze").write_text("1" if on else "0")
        else:
            (self._path / "freezer.state").write_text("FROZEN" if on else "THAWED")

    def _frozen(self) -> bool:
        if self._second:
            return "frozen 1" in (self._path / "cgroup.events").read_text()
        return (self._path / "freezer.state").read_text().strip() == "FROZEN"


class _Signals:
    """What was stopped before stays so."""

    def __init__(self, pid_namespace: int) -> None:
        self._pid_namespace = pid_namespace
        self._stopped: list[process_table.Entry] = []

    async def freeze(self) -> None:
        deadline = asyncio.get_running_loop().time() + FREEZE_SECONDS
        while running := self._running():
            pids = {each.pid for each in running}
            # A parent first: it never sees its children stopped.
            now = [each for each in running if each.parent not in pids]
            known = {each.pid for each in self._stopped}
            self._stopped += [each for each in now if each.pid not in known]
            for each in now:
                process_table.kill(each, signal.SIGSTOP)
            if asyncio.get_running_loop().time() > deadline:
                self.thaw()
                raise BoxFailed(f"not stopped after {FREEZE_SECONDS} s: {sorted(pids)}")
            await asyncio.sleep(POLL_SECONDS)

    def thaw(self) -> None:
        for each in reversed(self._stopped):
            process_table.kill(each, signal.SIGCONT)
        self._stopped.clear()

    async def remove(self) -> None:
        pass

    def _running(self) -> list[process_table.Entry]:
        found = process_table.members(self._pid_namespace)
        return [each for each in found if each.state not in "Tt"]


def _cgroups_of(pid: int) -> Iterator[Path]:
    """Where its cgroup is, the freezer of version 1 first: where both are, an engine uses that."""
    mounted = {"": "", "freezer": ""}
    roots = {}
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        fields, _, rest = line.partition(" - ")
        root, place = fields.split()[3:5]
        kind, _, options = rest.split()[:3]
        if kind == "cgroup" and "freezer" in options.split(","):
            mounted["freezer"], roots["freezer"] = place, root
        elif kind == "cgroup2":
            mounted[""], roots[""] = place, root
    lines = Path(f"/proc/{pid}/cgroup").read_text().splitlines()
    for controller in ("freezer", ""):
        for line in lines:
            _, controllers, path = line.split(":", 2)
            if mounted[controller] and controller in controllers.split(","):
                below = path.removeprefix(roots[controller].rstrip("/")).lstrip("/")
                yield Path(mounted[controller]) / below
