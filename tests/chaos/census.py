"""Who lives: boxes, mount daemons and their helpers of one stack, asked from /proc alone.

The product's own records are not read: what they have forgotten is what is looked for.
"""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

SESSION = r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
# also EINVAL: a process that is just dying has no mounts any more
NO_PROCESS = OSError
# they name a mountpoint and may hang there for as long as its store is away
UNMOUNTS = {"umount", "fusermount", "fusermount3"}


@dataclass(frozen=True)
class Process:
    """`started` tells it from a later process with the same pid."""

    pid: int
    started: int
    parent: int
    argv: tuple[str, ...]

    @property
    def name(self) -> str:
        return " ".join(self.argv)[:160]

    def alive(self) -> bool:
        found = look(self.pid)
        return found is not None and found.started == self.started

    def signal(self, number: int) -> bool:
        """Signal exactly this process; false when it is gone."""
        try:
            descriptor = os.pidfd_open(self.pid)
        except ProcessLookupError:
            return False
        try:
            if not self.alive():
                return False
            os.kill(self.pid, number)
        except ProcessLookupError:
            return False
        finally:
            os.close(descriptor)
        return True


def look(pid: int) -> Process | None:
    """The living process `pid`; None when there is none, or a zombie."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
        argv = Path(f"/proc/{pid}/cmdline").read_bytes()
    except NO_PROCESS:
        return None
    fields = stat.rpartition(")")[2].split()
    if fields[0] in ("Z", "X"):
        return None
    words = argv.rstrip(b"\0").split(b"\0")
    return Process(
        pid,
        int(fields[19]),
        int(fields[1]),
        tuple(word.decode("utf-8", "replace") for word in words),
    )


def everyone() -> Iterator[Process]:
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and (found := look(int(entry.name))) is not None:
            yield found


@dataclass
class Census:
    """Processes by the box or the session they belong to."""

    boxes: dict[str, list[Process]] = field(default_factory=lambda: defaultdict(list))
    keepers: dict[str, list[Process]] = field(default_factory=lambda: defaultdict(list))
    mounts: dict[str, list[Process]] = field(default_factory=lambda: defaultdict(list))
    walkers: dict[str, list[Process]] = field(default_factory=lambda: defaultdict(list))

    def boxes_of(self, session_id: str) -> dict[str, list[Process]]:
        return {box: inside for box, inside in self.boxes.items() if box.startswith(session_id)}

    def rivals(self) -> list[tuple[str, list[str]]]:
        """Sessions with more than one living box, or with two daemons on their files."""
        of_session = defaultdict(list)
        for box, inside in self.boxes.items():
            if any(process.alive() for process in inside):
                of_session[box[:36]].append(f"box {box}")
        for session, daemons in self.mounts.items():
            living = [daemon for daemon in daemons if daemon.alive()]
            if len(living) > 1:
                of_session[session] += [f"mount daemon {daemon.pid}" for daemon in living]
        return [
            (session, found)
            for session, found in of_session.items()
            if sum(name.startswith("box") for name in found) > 1
            or sum(name.startswith("mount") for name in found) > 1
        ]

    def of_sessions(self) -> dict[str, list[str]]:
        """Everything that lives for a session, as words."""
        found: dict[str, list[str]] = defaultdict(list)
        for kind, groups in (
            ("box", self.boxes),
            ("keeper", self.keepers),
            ("mount daemon", self.mounts),
            ("walker", self.walkers),
        ):
            for owner, members in groups.items():
                words = [f"{kind} {owner}: {p.pid} {p.name}" for p in members]
                found[owner[:36]] += words
        return found


def take_census(data_dir: Path) -> Census:
    """Everything on this host that serves a session of the stack in `data_dir`."""
    place = "/".join(data_dir.parts[-2:])
    in_box = re.compile(rf"{re.escape(place)}/boxes/({SESSION}[^/ ]*)/home")
    on_host = re.compile(rf"{re.escape(place)}/boxes/({SESSION}[^/ ]*)/keeper\.log")
    mountpoint = re.compile(rf"{re.escape(place)}/mounts/({SESSION})/")
    ours = os.readlink("/proc/self/ns/pid")  # noqa: PTH115
    census = Census()
    for process in everyone():
        try:
            inside = os.readlink(f"/proc/{process.pid}/ns/pid") != ours  # noqa: PTH115
            if inside:
                found = in_box.search(Path(f"/proc/{process.pid}/mountinfo").read_text())
                if found:
                    census.boxes[found[1]].append(process)
                continue
            said = os.readlink(f"/proc/{process.pid}/fd/2")  # noqa: PTH115
        except NO_PROCESS:
            continue
        if found := on_host.search(said):
            census.keepers[found[1]].append(process)
        elif Path(process.argv[0]).name in UNMOUNTS:
            continue
        elif found := mountpoint.search(" ".join(process.argv)):
            script = any(word.endswith(".py") for word in process.argv)
            (census.walkers if script else census.mounts)[found[1]].append(process)
    return census
