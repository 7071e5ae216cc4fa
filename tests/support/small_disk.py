"""A disk that can be full: a tmpfs, for which one must be root.

It is full when its size is set to what is in it now, and has room again with its old size: nothing
has to be written for it.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
from pathlib import Path

# SeaweedFS makes as many volumes as there is room for: memory is used for what is written only.
SIZE = 64 << 30
FILL_ATTEMPTS = 20


class NotFilled(Exception):
    """What is in a disk changes faster than its size can be set."""


def mount_disk(place: Path, mode: int) -> None:
    """Raises: OSError."""
    place.mkdir(parents=True, exist_ok=True)
    _run("mount", "-t", "tmpfs", "-o", f"size={SIZE},mode={mode:o}", "chaos", str(place))


def unmount_disk(place: Path) -> None:
    """Raises: OSError."""
    _run("umount", "-l", str(place))


def fill_disk(place: Path) -> None:
    """Leave no room. Raises: NotFilled."""
    for _ in range(FILL_ATTEMPTS):
        found = os.statvfs(place)
        with contextlib.suppress(OSError):  # it has grown meanwhile
            return _resize(place, (found.f_blocks - found.f_bfree) * found.f_frsize)
    raise NotFilled(f"{place} cannot be filled")


def free_disk(place: Path) -> None:
    """Raises: OSError."""
    _resize(place, SIZE)


def _resize(place: Path, size: int) -> None:
    _run("mount", "-o", f"remount,size={size}", str(place))


def _run(*argv: str) -> None:
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise OSError(done.stderr.strip() or f"{argv[0]} exited with {done.returncode}")
