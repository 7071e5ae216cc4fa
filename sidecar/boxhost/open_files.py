"""Which files of a mount sandboxes have open for writing or mapped, as the kernel knows it.

A file that is written through a descriptor that stays open, or through a mapping, may have bytes
that neither its size nor its time tells of. The file system itself is not asked: it may hang.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

WRITING = os.O_WRONLY | os.O_RDWR
GONE = (FileNotFoundError, ProcessLookupError, PermissionError)


def held_inodes(mountpoint: Path) -> set[int]:
    """Inode numbers of the mount that a process in a mount namespace other than ours can write to
    by what it holds already."""
    device = _device(mountpoint)
    if device is None:  # a plain directory: what else is on its disk does no harm here
        device = mountpoint.parent.stat().st_dev
    own = os.readlink("/proc/self/ns/mnt")  # noqa: PTH115
    mounts: dict[str, set[str]] = {own: set()}
    held: set[int] = set()
    for pid in os.listdir("/proc"):  # noqa: PTH208 - every process of the host, at each barrier
        if not pid.isdigit():
            continue
        try:
            namespace = os.readlink(f"/proc/{pid}/ns/mnt")  # noqa: PTH115
            if namespace not in mounts:
                mounts[namespace] = set(mount_ids(pid, device))
            if mounts[namespace]:
                held.update(_open(pid, mounts[namespace]))
                held.update(_mapped(pid, device))
        except GONE:
            continue
    return held


def _device(mountpoint: Path) -> int | None:
    wanted = str(mountpoint.parent.resolve() / mountpoint.name)
    found = None
    with open("/proc/self/mountinfo", encoding="utf-8") as lines:  # noqa: PTH123
        for line in lines:
            _, _, numbers, _, path, _ = line.split(maxsplit=5)
            if path.encode("latin-1").decode("unicode_escape") == wanted:
                found = os.makedev(*map(int, numbers.split(":")))
    return found


def mount_ids(pid: str, device: int) -> Iterator[str]:
    """Raises: ProcessLookupError, also for a process that is ending and has left its namespaces,
    by when it holds nothing any more: the kernel says EINVAL then."""
    wanted = f"{os.major(device)}:{os.minor(device)}"
    try:
        lines = open(f"/proc/{pid}/mountinfo", encoding="utf-8")  # noqa: PTH123, SIM115
    except OSError as error:
        if error.errno == errno.EINVAL:
            raise ProcessLookupError(errno.ESRCH, "it is ending", pid) from error
        raise
    with lines:
        for line in lines:
            mount_id, _, numbers, _ = line.split(maxsplit=3)
            if numbers == wanted:
                yield mount_id


def _open(pid: str, mount_ids: set[str]) -> Iterator[int]:
    for thread in os.listdir(f"/proc/{pid}/task"):  # noqa: PTH208 - a thread may have its own
        place = f"/proc/{pid}/task/{thread}/fdinfo"
        for name in os.listdir(place):  # noqa: PTH208
            try:
                with open(f"{place}/{name}", encoding="ascii", errors="replace") as info:  # noqa: PTH123
                    fields = dict(line.split(":", 1) for line in info if ":" in line)
            except GONE:
                continue
            if fields["mnt_id"].strip() in mount_ids and int(fields["flags"], 8) & WRITING:
                # Linux before 5.14 does not tell the inode here.
                yield int(fields.get("ino") or os.stat(f"/proc/{pid}/fd/{name}").st_ino)  # noqa: PTH116


def _mapped(pid: str, device: int) -> Iterator[int]:
    """Every shared mapping: one that is read-only by now may have been written to."""
    wanted = f"{os.major(device):02x}:{os.minor(device):02x}"
    with open(f"/proc/{pid}/maps", encoding="utf-8", errors="replace") as lines:  # noqa: PTH123
        for line in lines:
            _, permissions, _, numbers, inode, *_ = line.split(maxsplit=5)
            if permissions.endswith("s") and numbers == wanted:
                yield int(inode)
