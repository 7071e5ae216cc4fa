"""What a local sandbox left on this host: processes and mounts, found without asking the stack."""

from __future__ import annotations

import os
from pathlib import Path
from uuid import UUID


def processes_in(namespace: str) -> list[int]:
    """Pids whose PID namespace is `namespace`, as `readlink /proc/<pid>/ns/pid` says it."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            if str((entry / "ns" / "pid").readlink()) == namespace:
                found.append(int(entry.name))
        except OSError:
            # It ended just now, or is not ours to look at.
            continue
    return found


def named(session_id: UUID) -> list[str]:
    """Processes and mounts of this host that name the session: its mount daemon, its box."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            argv = (entry / "cmdline").read_bytes()
        except OSError:
            continue
        if str(session_id).encode() in argv:
            found.append(f"pid {entry.name}")
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        if str(session_id) in line:
            found.append(f"mount {line.split()[4]}")
    return found
