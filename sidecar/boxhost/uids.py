"""One host uid per session, where we are root: a box of one session cannot touch another's files
even if it finds a way to them. The uid is the session's, not the box's, because a mount that shows
files as owned by it outlives the box."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import time
from pathlib import Path
from typing import Any

from sidecar.record_files import BROKEN, read_record, sweep_records, write_record

# A range that no distribution hands out to people or services; spread so that two stacks on one
# host rarely share uids, which would be ugly in `ps` but not unsafe.
UID_BASE, BLOCKS, UIDS_PER_BLOCK = 1_900_000, 400, 500
ALL_UIDS = range(UID_BASE, UID_BASE + BLOCKS * UIDS_PER_BLOCK)
# A session that was given its uid this lately may be about to use it.
FRESH_SECONDS = 600.0


class NoUidLeft(Exception):
    """Every uid of this stack's block belongs to a session that has a box or a mount."""


class Uids:
    def __init__(self, data_dir: Path, block: range | None = None) -> None:
        """`block` is the range of uids to give; by default one chosen by the directory's path."""
        self._data = data_dir
        self._dir = data_dir / "uids"
        self._block = block or _choose_block(data_dir)

    def of(self, session_id: str) -> int | None:
        """The session's uid, given at the first call; None where we are not root.

        Raises: NoUidLeft.
        """
        if os.geteuid() != 0:
            return None
        self._dir.mkdir(parents=True, exist_ok=True)
        with (self._dir / ".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            given = self._given()
            if session_id in given:
                os.utime(self._dir / session_id)
                return given[session_id]
            uid = self._choose(session_id, given)
            if uid is not None:
                write_record(self._dir / session_id, str(uid))
                return uid
        raise NoUidLeft(f"{len(self._block)} sessions have a box or a mount: end one first")

    def _given(self) -> dict[str, int]:
        found = {}
        for path in self._dir.glob("[!.]*"):
            uid = None if path.suffix == BROKEN else read_record(path, self._parse)
            if uid is not None:
                found[path.name] = uid
        return found

    def _parse(self, record: int) -> int:
        """What is left of a record that was cut off is somebody else's uid. Raises: ValueError."""
        if record not in ALL_UIDS and record not in self._block:
            raise ValueError(f"{record} is no uid of a session")
        return record

    def _choose(self, session_id: str, given: dict[str, int]) -> int | None:
        taken = set(given.values())
        if any(self._dir.glob(f"*{BROKEN}")):
            # Of those sessions nothing but their boxes and processes tells which uid they have.
            sweep_records(self._dir)
            boxed = self._boxed()
            for session, uid in boxed:
                if session == session_id:
                    return uid
            taken |= {uid for _, uid in boxed} | _running()
        free = self._free(taken)
        return self._free(taken - self._take_back(given)) if free is None else free

    def _free(self, taken: set[int]) -> int | None:
        return next((uid for uid in self._block if uid not in taken), None)

    def _take_back(self, given: dict[str, int]) -> set[int]:
        """The uids of sessions of which nothing is on this host, free again: their next box and
        mount get another one, as what is stored knows no uid."""
        mounted = {path.stem for path in (self._data / "mounts").glob("*.json")}
        boxed = {uid for _, uid in self._boxed()}
        running = _running()
        fresh = time.time() - FRESH_SECONDS
        taken_back = set()
        for session_id, uid in given.items():
            path = self._dir / session_id
            in_use = session_id in mounted or uid in boxed or uid in running
            if not in_use and path.stat().st_mtime < fresh:
                path.unlink()
                taken_back.add(uid)
        return taken_back

    def _boxed(self) -> list[tuple[str, int]]:
        """The session and the uid of every box."""

        def parse(record: dict[str, Any]) -> tuple[str, int | None]:
            return record["labels"].get("session", ""), record["uid"]

        boxes = (read_record(path, parse) for path in self._data.glob("boxes/*/box.json"))
        return [(box[0], box[1]) for box in boxes if box is not None and box[1] is not None]

    def release(self, session_id: str) -> None:
        (self._dir / session_id).unlink(missing_ok=True)


def _choose_block(data_dir: Path) -> range:
    number = int(hashlib.sha256(str(data_dir.resolve()).encode()).hexdigest(), 16) % BLOCKS
    first = UID_BASE + number * UIDS_PER_BLOCK
    return range(first, first + UIDS_PER_BLOCK)


def _running() -> set[int]:
    """The uids under which there are processes."""
    found = set()
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            found.add(path.stat().st_uid)
    return found
