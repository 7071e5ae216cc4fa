"""Who descends from whom, by /proc, as this process sees it."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Entry:
    """`started` is in clock ticks since boot: with the pid, it names a process for good."""

    pid: int
    state: str
    parent: int
    session: int
    started: int


def entry(pid: int) -> Entry | None:
    """None for a process that has ended, reaped or not."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The command's name may hold spaces and parentheses: what follows the last one is regular.
    fields = stat[stat.rindex(")") + 2 :].split()
    if fields[0] in "ZX":
        return None
    return Entry(pid, fields[0], int(fields[1]), int(fields[3]), int(fields[19]))


def entries() -> Iterator[Entry]:
    for name in os.listdir("/proc"):  # noqa: PTH208 - names only, of every process
        if name.isdigit() and (found := entry(int(name))) is not None:
            yield found


def is_in(pid: int, pid_namespace: int) -> bool:
    """Whether the process is in the PID namespace with this inode number, and not in one below."""
    try:
        return os.stat(f"/proc/{pid}/ns/pid").st_ino == pid_namespace  # noqa: PTH116
    except OSError:  # ended, or the system's own
        return False


def members(pid_namespace: int) -> list[Entry]:
    """Every process of the namespace and of those below it."""
    living = list(entries())
    inside = {each.pid for each in living if is_in(each.pid, pid_namespace)}
    found = _with_descendants(inside, living)
    return [each for each in living if each.pid in found]


def tree(leader: int, pid_namespace: int) -> list[Entry]:
    """What descends from `leader`, itself included, and the sessions that one of these leads. The
    leader may have ended: then its session is left, whose number no other process gets."""
    living = list(entries())
    found = {leader} if is_in(leader, pid_namespace) else set()
    led = {leader}
    while True:
        sessions = {
            each.pid
            for each in living
            if each.session in led | found and is_in(each.pid, pid_namespace)
        }
        grown = _with_descendants(found | sessions, living)
        if grown == found:
            return [each for each in living if each.pid in found]
        found = grown


def kill(process: Entry, number: int = signal.SIGKILL) -> None:
    """Signal exactly this process, if it lives."""
    try:
        fd = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return
    try:
        # The pidfd pins the pid, so that the check and the signal meet the same process.
        now = entry(process.pid)
        if now is not None and now.started == process.started:
            signal.pidfd_send_signal(fd, number)
    except ProcessLookupError:
        return
    finally:
        os.close(fd)


def _with_descendants(pids: set[int], living: list[Entry]) -> set[int]:
    found = set(pids)
    while new := {each.pid for each in living if each.parent in found} - found:
        found |= new
    return found
