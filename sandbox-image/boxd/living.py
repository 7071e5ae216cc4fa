"""Who runs in this sandbox: found, killed, stopped and let go on.

In a container that is every other process. In a cloud's box it is what was started from here: the
provider has processes of its own there, which must go on."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from asked import Refused

WORKSPACE = "/session/workspace"
STOP_SECONDS = 60
KILL_SECONDS = 10
POLL_SECONDS = 0.005
WRITING = os.O_WRONLY | os.O_RDWR
GONE = (FileNotFoundError, ProcessLookupError, PermissionError)
# In the environment of all that is started from here.
MARK = "HOLDFAST_BOX"
# Helpers of ours, which look at the workspace, or serve it, while all else stands still.
EXEMPT: set[int] = set()


def running() -> Iterator[tuple[int, str]]:
    """Every living process but us, with the token that names it for good."""
    parents: dict[int, int] = {}
    tokens: dict[int, str] = {}
    for name in os.listdir("/proc"):  # noqa: PTH208
        fields = stat_fields(f"/proc/{name}/stat") if name.isdigit() else []
        if fields:
            parents[int(name)] = int(fields[1])
            if fields[0] not in "ZX":
                tokens[int(name)] = f"{name}:{fields[19]}"
    for pid, token in tokens.items():
        if _is_ours(pid, parents):
            yield pid, token


def _is_ours(pid: int, parents: dict[int, int]) -> bool:
    """Whether it is below this process and not below an exempt one."""
    own = os.getpid()
    if pid == own:
        return False
    while pid not in (own, 0):
        if pid in EXEMPT:
            return False
        pid = parents.get(pid, 0)
    return pid == own or own == 1


def token_of(pid: int) -> str:
    """Empty for one that is gone, or waits to be reaped."""
    fields = stat_fields(f"/proc/{pid}/stat")
    return "" if not fields or fields[0] in "ZX" else f"{pid}:{fields[19]}"


def stat_fields(path: str) -> list[str]:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:  # noqa: PTH123
            line = file.read()
    except GONE:
        return []
    return line[line.rindex(")") + 2 :].split()


def described(pid: int, token: str) -> dict[str, Any]:
    try:
        argv = Path(f"/proc/{pid}/cmdline").read_bytes().rstrip(b"\0").split(b"\0")
        exe = os.readlink(f"/proc/{pid}/exe")  # noqa: PTH115
    except GONE:
        argv, exe = [b""], ""
    words = [word.decode("utf-8", "replace") for word in argv]
    return {"token": token, "pid": pid, "argv": [*words, exe], "memory": memory_of(pid)}


def memory_of(pid: int) -> int:
    """What it has in memory, in bytes; 0 for one that is gone."""
    try:
        pages = Path(f"/proc/{pid}/statm").read_text().split()[1]
    except GONE:
        return 0
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


def marked(marker: bytes) -> list[str]:
    """Tokens of those that were started with `marker` in their environment."""
    found = []
    for pid, token in running():
        with contextlib.suppress(*GONE):
            if marker in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                found.append(token)
    return found


async def kill_strays() -> None:
    """What a boxd before us started and left: nobody could find it any more. Raises: Refused."""
    await kill([token for token in map(_stray, os.listdir("/proc")) if token])  # noqa: PTH208


def _stray(name: str) -> str:
    if not name.isdigit() or int(name) == os.getpid():
        return ""
    try:
        environment = Path(f"/proc/{name}/environ").read_bytes().split(b"\0")
    except GONE:
        return ""
    return token_of(int(name)) if f"{MARK}=1".encode() in environment else ""


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


async def kill_marked(marker: bytes) -> None:
    for _ in range(50):  # a fork bomb gets fifty sweeps
        left = marked(marker)
        if not left:
            return
        await kill(left)
    raise Refused("processes multiply faster than they can be killed")


def is_stopped(pid: int) -> bool:
    """Whether no thread of it runs; one that is gone does not."""
    try:
        threads = os.listdir(f"/proc/{pid}/task")  # noqa: PTH208
    except GONE:
        return True
    states = (stat_fields(f"/proc/{pid}/task/{thread}/stat") for thread in threads)
    return all(not fields or fields[0] in "TtZX" for fields in states)


async def freeze(stopped: list[int]) -> None:
    """Stop everyone; who was stopped is added to `stopped` before it is. A parent has stopped
    before its children are told to, and never sees them stopped; a vforked child gets to the exec
    that its parent waits for. Raises: Refused; then the caller must thaw."""
    deadline = time.monotonic() + STOP_SECONDS
    while True:
        awake = {pid for pid, _ in running() if not is_stopped(pid)}
        if not awake:
            return
        for pid in awake:
            fields = stat_fields(f"/proc/{pid}/stat")
            if fields and int(fields[1]) not in awake:
                if pid not in stopped:
                    stopped.append(pid)
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGSTOP)
        if time.monotonic() > deadline:
            raise Refused(f"processes {sorted(awake)[:5]} do not stop")
        await asyncio.sleep(POLL_SECONDS)


def thaw(stopped: list[int]) -> None:
    for pid in reversed(stopped):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


def held() -> list[int]:
    """Inodes of the workspace that are open for writing or mapped. Not asked of the file system,
    which may hang."""
    found: set[int] = set()
    with open("/proc/self/mountinfo", encoding="utf-8") as lines:  # noqa: PTH123
        mounts = [line.split(maxsplit=5) for line in lines]
    devices = {fields[2] for fields in mounts if fields[4] == WORKSPACE} or _own_device()
    mount_ids = {fields[0] for fields in mounts if fields[2] in devices}
    numbers = {"{:02x}:{:02x}".format(*map(int, device.split(":"))) for device in devices}
    for pid, _ in running():
        with contextlib.suppress(*GONE):
            for thread in os.listdir(f"/proc/{pid}/task"):  # noqa: PTH208
                found.update(_open_for_writing(f"/proc/{pid}/task/{thread}", mount_ids))
            found.update(_mapped(pid, numbers))
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
