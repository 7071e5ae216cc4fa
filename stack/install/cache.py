"""The cache directory that all clones of a user share."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from stack.errors import InstallFailed
from stack.install.progress import Progress

# Longer than the slowest installation that is still going to succeed.
LOCK_SECONDS = 1800.0
_POLL_SECONDS = 0.1


def make_cache(root: Path) -> Path:
    """Make the cache, readable by everyone: boxes run under other uids.

    Raises:
        InstallFailed: the directory cannot be made.
    """
    try:
        root.mkdir(parents=True, exist_ok=True)
        if root.stat().st_uid == os.geteuid():
            root.chmod(0o755)
    except OSError as error:
        raise InstallFailed(
            f"the cache {root} cannot be made: {error.strerror}",
            hint="set HOLDFAST_CACHE to a directory that you can write to",
        ) from error
    return root


@contextmanager
def exclusive(lock: Path, progress: Progress, *, seconds: float = LOCK_SECONDS) -> Iterator[None]:
    """Hold `lock` against every other process; the kernel lets go of it when this one dies.

    Raises:
        InstallFailed: another process held it for `seconds`.
    """
    handle = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        _acquire(handle, lock, progress, seconds)
        yield
    finally:
        os.close(handle)


def _acquire(handle: int, lock: Path, progress: Progress, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    told = False
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise InstallFailed(
                    f"another installation has held {lock} for {seconds:.0f} s",
                    hint="look for a `holdfast install` that hangs, end it, and try again",
                ) from None
            if not told:
                progress.say("waiting for another installation into the same cache")
                told = True
            time.sleep(_POLL_SECONDS)
        else:
            return
