"""Who runs in this sandbox: found, described and killed.

In a container that is every other process. In a cloud's box it is what was started from here: the
provider has processes of its own there, which must go on.

Of /proc, only `stat` and lists are read in the event loop. Whatever needs a process's memory
(`cmdline`, `environ`, `maps`) waits for a lock that a process in a dead mount may hold for ever.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from asked import Refused
from threads import Threads

WORKSPACE = "/session/workspace"
KILL_SECONDS = 10
POLL_SECONDS = 0.005
# What one process may take to be read, and how many that take longer a look passes over.
READ_SECONDS = 1.0
MOST_HUNG = 4
HELD_SECONDS = 60
# How often a process without an environment is looked at again: an exec has none for a moment.
ENVIRONMENT_LOOKS = 20
WRITING = os.O_WRONLY | os.O_RDWR
GONE = (FileNotFoundError, ProcessLookupError, PermissionError)
# In the environment of all that is started from here.
MARK = "HOLDFAST_BOX"
# Helpers of ours, which look at the workspace, or serve it, while all else stands still.
EXEMPT: set[int] = set()
Read = TypeVar("Read")


class Running(NamedTuple):
    """A process. `token` names it for good; `stopped`: no thread of it runs."""

    pid: int
    token: str
    parent: int
    group: int
    session: int
    state: str
    stopped: bool
    command: str


def scan() -> tuple[list[Running], list[Running]]:
    """Every living process but us, and our helpers."""
    parents: dict[int, int] = {}
    living: list[tuple[int, list[str]]] = []
    for name in os.listdir("/proc"):  # noqa: PTH208
        fields = stat_fields(f"/proc/{name}/stat") if name.isdigit() else []
        if fields:
            parents[int(name)] = int(fields[1])
            if _lives(fields):
                living.append((int(name), fields))
    found: list[Running] = []
    helpers: list[Running] = []
    for pid, fields in living:
        kind = _kind(pid, parents)
        if kind is not None:
            (found if kind else helpers).append(_running(pid, fields))
    return found, helpers


def running() -> list[Running]:
    return scan()[0]


def _running(pid: int, fields: list[str]) -> Running:
    parent, group, session = map(int, fields[1:4])
    stopped = fields[0] in "Tt" if fields[17] == "1" else is_stopped(pid)
    token = f"{pid}:{fields[19]}"
    return Running(pid, token, parent, group, session, fields[0], stopped, fields[-1])


def _kind(pid: int, parents: dict[int, int]) -> bool | None:
    """True for a process below this one, False for one below a helper, None for a stranger."""
    own = os.getpid()
    if pid == own:
        return None
    while pid not in (own, 0):
        if pid in EXEMPT:
            return False
        pid = parents.get(pid, 0)
    return True if pid == own or own == 1 else None


def _lives(fields: list[str]) -> bool:
    """Its first thread may have ended before the others."""
    return fields[0] not in "ZX" or int(fields[17]) > 1


def token_of(pid: int) -> str:
    """Empty for one that is gone, or waits to be reaped."""
    fields = stat_fields(f"/proc/{pid}/stat")
    return f"{pid}:{fields[19]}" if fields and _lives(fields) else ""


def is_child(pid: int) -> bool:
    """Whether it is a child of ours that was not reaped."""
    fields = stat_fields(f"/proc/{pid}/stat")
    return bool(fields) and int(fields[1]) == os.getpid()


def stat_fields(path: str) -> list[str]:
    """From the state on; the command's name is the last."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:  # noqa: PTH123
            line = file.read()
    except GONE:
        return []
    end = line.rindex(")")
    return [*line[end + 2 :].split(), line[line.index("(") + 1 : end]]


def is_stopped(pid: int) -> bool:
    """Whether no thread of it runs; one that is gone does not."""
    try:
        threads = os.listdir(f"/proc/{pid}/task")  # noqa: PTH208
    except GONE:
        return True
    states = (stat_fields(f"/proc/{pid}/task/{thread}/stat") for thread in threads)
    return all(not fields or fields[0] in "TtZX" for fields in states)


class Reader:
    """Reads what may hang, process by process, and passes over those that do."""

    def __init__(self) -> None:
        self._threads = Threads("reader", kept=2)
        self._hung: set[str] = set()
        self._bare: set[str] = set()  # have no environment, and not for a moment only

    async def describe(self) -> list[dict[str, Any]]:
        """One that cannot be read has its command's name alone, and the token to kill it by."""
        found = await self._threads.run(
            lambda: [(each, memory_of(each.pid)) for each in running()], HELD_SECONDS
        )
        read = await self._read_each((each for each, _ in found), _words)
        return [
            {
                "token": each.token,
                "pid": each.pid,
                "argv": read.get(each.token, [each.command, ""]),
                "memory": memory,
            }
            for each, memory in found
        ]

    async def held(self) -> list[int]:
        """Raises: Refused, when a process cannot be read."""
        return await self._threads.run(_held, HELD_SECONDS)

    async def marked(self, marker: bytes, session: int) -> list[Running]:
        """Those that were started with `marker` in their environment, or are in this session."""
        found: list[Running] = []
        left = await self._threads.run(running, HELD_SECONDS)
        for _ in range(ENVIRONMENT_LOOKS):
            found += [each for each in left if each.session == session]
            left = [each for each in left if each.session != session]
            environments = await self._read_each(left, _environment)
            found += [each for each in left if marker in environments.get(each.token, [])]
            empty = {token for token, variables in environments.items() if variables == [b""]}
            left = [each for each in left if each.token in empty - self._bare]
            if not left:
                return found
            await asyncio.sleep(POLL_SECONDS)
        self._bare = {each.token for each in left}
        return found

    async def kill_strays(self) -> None:
        """What a boxd before us started and left: nobody could find it any more.

        Raises: Refused."""
        everyone = await self._threads.run(_everyone, HELD_SECONDS)
        environments = await self._read_each(everyone, _environment)
        mark = f"{MARK}=1".encode()
        await kill([token for token, variables in environments.items() if mark in variables])

    async def kill_marked(self, marker: bytes, session: int) -> None:
        """Raises: Refused."""
        _kill_group(session)
        for _ in range(50):  # a fork bomb gets fifty sweeps
            left = await self.marked(marker, session)
            if not left:
                return
            # By group, because the kernel lets nobody fork out of one that it kills.
            for group in {each.group for each in left}:
                _kill_group(group)
            await kill([each.token for each in left])
        raise Refused("processes multiply faster than they can be killed")

    async def _read_each(
        self, found: Iterable[Running], read: Callable[[int], Read | None]
    ) -> dict[str, Read]:
        """By token. A thread that hangs is left to its process, and another one goes on."""
        left = deque(each for each in found if each.token not in self._hung)
        results: dict[str, Read] = {}

        def work() -> None:
            while left:
                try:
                    each = left.popleft()
                except IndexError:  # another one was quicker
                    return
                self._hung.add(each.token)
                try:
                    value = read(each.pid)
                finally:
                    self._hung.discard(each.token)
                if value is not None:
                    results[each.token] = value

        for _ in range(MOST_HUNG):
            working = asyncio.ensure_future(self._threads.run(work))
            try:
                before = -1
                while not working.done() and before != len(left):
                    before = len(left)
                    await asyncio.wait({working}, timeout=READ_SECONDS)
                if working.done():
                    working.result()
                    break
            finally:
                working.cancel()
        return dict(results)


def _kill_group(group: int) -> None:
    """Never our own: whatever is started here has a session of its own."""
    if group > 1 and group != os.getpgrp():
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(group, signal.SIGKILL)


def _everyone() -> list[Running]:
    """Every process of the box but us, also those that are not ours."""
    pids = (int(name) for name in os.listdir("/proc") if name.isdigit())  # noqa: PTH208
    stats = [(pid, stat_fields(f"/proc/{pid}/stat")) for pid in pids if pid != os.getpid()]
    return [_running(pid, fields) for pid, fields in stats if fields and _lives(fields)]


def _words(pid: int) -> list[str] | None:
    """The arguments, and the program's file behind them."""
    try:
        argv = Path(f"/proc/{pid}/cmdline").read_bytes().rstrip(b"\0").split(b"\0")
        exe = os.readlink(f"/proc/{pid}/exe")  # noqa: PTH115
    except GONE:
        return None
    return [*(word.decode("utf-8", "replace") for word in argv), exe]


def _environment(pid: int) -> list[bytes] | None:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except GONE:
        return None


def memory_of(pid: int) -> int:
    """What it has in memory, in bytes; 0 for one that is gone."""
    try:
        pages = Path(f"/proc/{pid}/statm").read_text().split()[1]
    except GONE:
        return 0
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


async def kill(tokens: list[str]) -> None:
    """SIGKILL these and wait for their end. Raises: Refused, when one does not die."""
    for token in tokens:
        pid = int(token.partition(":")[0])
        if token_of(pid) == token:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    deadline = time.monotonic() + KILL_SECONDS
    while left := [t for t in tokens if token_of(int(t.partition(":")[0])) == t]:
        if time.monotonic() > deadline:
            raise Refused(f"process {left[0]} survived SIGKILL")
        await asyncio.sleep(POLL_SECONDS)


def _held() -> list[int]:
    """Inodes of the workspace that are open for writing or mapped. Not asked of the file system,
    which may hang."""
    found: set[int] = set()
    with open("/proc/self/mountinfo", encoding="utf-8") as lines:  # noqa: PTH123
        mounts = [line.split(maxsplit=5) for line in lines]
    devices = {fields[2] for fields in mounts if fields[4] == WORKSPACE} or _own_device()
    mount_ids = {fields[0] for fields in mounts if fields[2] in devices}
    numbers = {"{:02x}:{:02x}".format(*map(int, device.split(":"))) for device in devices}
    for each in running():
        with contextlib.suppress(*GONE):
            for thread in os.listdir(f"/proc/{each.pid}/task"):  # noqa: PTH208
                found.update(_open_for_writing(f"/proc/{each.pid}/task/{thread}", mount_ids))
            found.update(_mapped(each.pid, numbers))
    return sorted(found)


def _own_device() -> set[str]:
    """The box's own disk, for a workspace that is a plain directory of it."""
    number = os.stat(WORKSPACE).st_dev  # noqa: PTH116
    return {f"{os.major(number)}:{os.minor(number)}"}


def _open_for_writing(thread: str, mount_ids: set[str]) -> Iterator[int]:
    for name in os.listdir(f"{thread}/fdinfo"):  # noqa: PTH208
        try:
            text = Path(f"{thread}/fdinfo/{name}").read_text(errors="replace")
        except GONE:
            continue
        fields = dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
        if fields["mnt_id"].strip() in mount_ids and int(fields["flags"], 8) & WRITING:
            # Linux before 5.14 does not tell the inode here.
            yield int(fields.get("ino") or os.stat(f"{thread}/fd/{name}").st_ino)  # noqa: PTH116


def _mapped(pid: int, numbers: set[str]) -> Iterator[int]:
    for line in Path(f"/proc/{pid}/maps").read_text(errors="replace").splitlines():
        _, permissions, _, device, inode, *_ = line.split(maxsplit=5)
        if permissions.endswith("s") and device in numbers:
            yield int(inode)
