"""Processes that are not our children: named by pid and start time, so that a reused pid is never
mistaken for the one we knew."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

PROC = Path("/proc")
_PF_EXITING = 0x4
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True)
class ProcessId:
    """A process for all time: `started` is its start in clock ticks since boot."""

    pid: int
    started: int


@dataclass(frozen=True)
class ProcessInfo:
    """A process as seen from the host. `inner_pid` is its pid inside its own PID namespace,
    `memory` what it has in memory, in bytes."""

    id: ProcessId
    inner_pid: int
    argv: tuple[str, ...]
    exe: str
    memory: int = field(default=0, compare=False)


def start_lasting(
    argv: Sequence[str], *, stdin: int, stdout: int, stderr: int, env: Mapping[str, str]
) -> subprocess.Popen[bytes]:
    """Start a process that outlives this one if it must. Not asyncio's: its transport kills what
    it started. A thread waits for it, so that it leaves no zombie while we live."""
    process = subprocess.Popen(
        list(argv),
        stdin=stdin,
        stdout=stdout,
        stderr=stderr,
        env=dict(env),
        cwd="/",
        start_new_session=True,
    )
    threading.Thread(target=process.wait, daemon=True).start()
    return process


def identify(pid: int) -> ProcessId | None:
    """The identity of the living process `pid`; None if there is none or it is a zombie."""
    fields = _stat_fields(pid)
    # The first thread may have ended before the others.
    if fields is None or (fields[0] in ("Z", "X") and int(fields[17]) <= 1):
        return None
    return ProcessId(pid, int(fields[19]))


def alive(process: ProcessId) -> bool:
    return identify(process.pid) == process


def kill(process: ProcessId, sig: int = signal.SIGKILL) -> bool:
    """Signal exactly this process; False if it is gone."""
    try:
        fd = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return False
    try:
        # The pidfd pins the pid, so that the check and the signal meet the same process.
        if not alive(process):
            return False
        signal.pidfd_send_signal(fd, sig)
    except ProcessLookupError:
        return False
    finally:
        os.close(fd)
    return True


async def wait_gone(process: ProcessId, bound: float) -> bool:
    """Whether the process has ended within `bound` seconds. Works for strangers' children."""
    return not alive(process) or await wait_pid(process.pid, bound) or not alive(process)


async def wait_pid(pid: int, bound: float | None) -> bool:
    """Whether whatever has this pid now has ended within `bound` seconds."""
    try:
        fd = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    loop.add_reader(fd, ended.set)
    try:
        async with asyncio.timeout(bound):
            await ended.wait()
    except TimeoutError:
        return False
    finally:
        loop.remove_reader(fd)
        os.close(fd)
    return True


def in_pid_namespace(namespace: int) -> Iterator[ProcessInfo]:
    """Every living process whose PID namespace has this inode number."""
    link = f"pid:[{namespace}]"
    # os and not pathlib: this looks at every process of the host, before every prompt.
    for name in os.listdir("/proc"):  # noqa: PTH208
        if not name.isdigit():
            continue
        entry = PROC / name
        try:
            if os.readlink(f"/proc/{name}/ns/pid") != link:  # noqa: PTH115
                continue
            process = identify(int(name))
            if process is None:
                continue
            argv = (entry / "cmdline").read_bytes().rstrip(b"\0").split(b"\0")
            yield ProcessInfo(
                id=process,
                inner_pid=inner_pid(int(name)),
                argv=tuple(arg.decode("utf-8", "replace") for arg in argv),
                exe=_exe(entry),
                memory=int((entry / "statm").read_text().split()[1]) * PAGE_BYTES,
            )
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue


def with_arguments(wanted: Callable[[Sequence[str]], bool]) -> list[ProcessId]:
    """Every living process of the host, or of the container we run in, none of a box, whose
    arguments are wanted. The arguments are looked at first: most processes cost one read."""
    own = os.readlink("/proc/self/ns/pid")  # noqa: PTH115
    found = []
    for name in os.listdir("/proc"):  # noqa: PTH208
        if not name.isdigit():
            continue
        try:
            argv = (PROC / name / "cmdline").read_bytes().rstrip(b"\0").split(b"\0")
            if not wanted([arg.decode("utf-8", "replace") for arg in argv]):
                continue
            process = identify(int(name))
            if process is not None and os.readlink(f"/proc/{name}/ns/pid") == own:  # noqa: PTH115
                found.append(process)
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue
    return found


def is_in(process: ProcessId, namespace: int) -> bool:
    """Whether the process lives in the PID namespace with this inode number."""
    try:
        inside = (PROC / str(process.pid) / "ns/pid").stat().st_ino == namespace
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return False
    return inside and alive(process)


def environment(process: ProcessId) -> bytes | None:
    """What the process was started with; None for one that is gone or may not be read."""
    try:
        return (PROC / str(process.pid) / "environ").read_bytes()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return None


def environment_has(process: ProcessId, beginning: bytes) -> bool:
    return has_variable(environment(process) or b"", beginning)


def has_variable(environment: bytes, beginning: bytes) -> bool:
    """Whether a variable begins so, as `NAME=` and `NAME=value` do."""
    return any(variable.startswith(beginning) for variable in environment.split(b"\0"))


def parent_pid(pid: int) -> int:
    """0 for a process that is gone."""
    fields = _stat_fields(pid)
    return 0 if fields is None else int(fields[1])


def is_exiting(pid: int) -> bool:
    """Whether it runs no code of its own any more, or is gone."""
    fields = _stat_fields(pid)
    if fields is None:
        return True
    return bool(int(fields[6]) & _PF_EXITING) and int(fields[17]) <= 1  # threads that are left


def group_of(pid: int) -> int:
    """0 for a process that is gone."""
    fields = _stat_fields(pid)
    return 0 if fields is None else int(fields[2])


def command(pid: int) -> str:
    try:
        return (PROC / str(pid) / "comm").read_text().strip()
    except (FileNotFoundError, ProcessLookupError):
        return "gone"


def thread_states(pid: int) -> str:
    """One letter per thread, as `ps` shows them; none for a process that is gone."""
    states = ""
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):  # noqa: PTH208
            fields = _stat_fields(f"{pid}/task/{thread}")
            states += fields[0] if fields is not None else ""
    except (FileNotFoundError, ProcessLookupError):
        pass
    return states


def _exe(entry: Path) -> str:
    try:
        return str((entry / "exe").readlink())
    except (FileNotFoundError, PermissionError):
        return ""


def inner_pid(pid: int) -> int:
    """Its pid inside its own PID namespace. Raises: FileNotFoundError, ProcessLookupError."""
    for line in (PROC / str(pid) / "status").read_text().splitlines():
        if line.startswith("NSpid:"):
            return int(line.split()[-1])
    return 0


def _stat_fields(pid: int | str) -> list[str] | None:
    try:
        stat = (PROC / str(pid) / "stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The command may hold spaces and parentheses: what follows the last one is regular.
    return stat[stat.rindex(")") + 2 :].split()
