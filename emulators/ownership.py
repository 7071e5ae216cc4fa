"""Whose boxes are whose: an emulator that is killed leaves some behind, and the next one has to
know that it is dead."""

from __future__ import annotations

import os
from pathlib import Path

from emulators import process_table

# In names of containers, directories and cgroups, and the label of containers.
MARK = "holdfast.emulator"


def ours() -> str:
    """This emulator's name for all time: the machine's boot, the PID namespace, the pid and when it
    was started."""
    entry = process_table.entry(os.getpid())
    assert entry is not None
    return f"{_here()}-{entry.pid}-{entry.started}"


def is_dead(owner: str) -> bool:
    """Whether that emulator has surely ended. One of another PID namespace we cannot see, so that
    it may live; one of an earlier boot does not."""
    boot, namespace, pid, started = owner.split("-")
    if boot != _boot():
        return True
    if f"{boot}-{namespace}" != _here():
        return False
    entry = process_table.entry(int(pid))
    return entry is None or entry.started != int(started)


def owner_in(name: str) -> str | None:
    """The owner in `holdfast.emulator.<owner>.<rest>`; None for another kind of name."""
    if not name.startswith(f"{MARK}."):
        return None
    owner = name.removeprefix(f"{MARK}.").partition(".")[0]
    parts = owner.split("-")
    return owner if len(parts) == 4 and all(part.isalnum() for part in parts) else None


def _here() -> str:
    return f"{_boot()}-{Path('/proc/self/ns/pid').stat().st_ino}"


def _boot() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip().replace("-", "")[:12]
