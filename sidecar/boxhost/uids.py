"""One host uid per session, where we are root: a box of one session cannot touch another's files
even if it finds a way to them. The uid is the session's, not the box's, because a mount that shows
files as owned by it outlives the box."""

from __future__ import annotations

import fcntl
import hashlib
import os
from pathlib import Path

# A range that no distribution hands out to people or services; spread so that two stacks on one
# host rarely share uids, which would be ugly in `ps` but not unsafe.
UID_BASE, BLOCKS, UIDS_PER_BLOCK = 1_900_000, 400, 500


class NoUidLeft(Exception):
    """Every uid of this stack's block belongs to a session."""


class Uids:
    def __init__(self, data_dir: Path) -> None:
        self._dir = data_dir / "uids"
        block = int(hashlib.sha256(str(data_dir.resolve()).encode()).hexdigest(), 16) % BLOCKS
        self._first = UID_BASE + block * UIDS_PER_BLOCK

    def of(self, session_id: str) -> int | None:
        """The session's uid, given at the first call; None where we are not root.

        Raises: NoUidLeft.
        """
        if os.geteuid() != 0:
            return None
        self._dir.mkdir(parents=True, exist_ok=True)
        with (self._dir / ".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            given = {path.name: int(path.read_text()) for path in self._dir.glob("[!.]*")}
            if session_id in given:
                return given[session_id]
            taken = set(given.values())
            for uid in range(self._first, self._first + UIDS_PER_BLOCK):
                if uid not in taken:
                    (self._dir / session_id).write_text(str(uid))
                    return uid
        raise NoUidLeft(f"{UIDS_PER_BLOCK} sessions hold a uid: release one first")

    def release(self, session_id: str) -> None:
        (self._dir / session_id).unlink(missing_ok=True)
