"""One session into the archive: its objects, then its rows, both of one moment.

What makes it one moment is the session's epoch. Every start of a turn, and every change of whoever
carries one, raises it, so when it is the same before the first object was read and in the snapshot
that the rows come from, and no turn ran at either, no turn has run in between. The hold is there
that this comes about at all in a busy session. Objects that users, or processes which a turn
left behind, change meanwhile are found by a second listing and copied again.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any
from uuid import UUID

from api.backup.archive import FILES, STATE, Writer, Written
from api.backup.errors import BackupError
from api.backup.objects import Objects, Seen
from api.db import dump
from api.db.dump import Proven, Table
from contracts.errors import StoreUnavailable

if TYPE_CHECKING:
    from api.db.pool import Connection

# How often a session is begun anew whose turns do not stand still although they are held.
TRIES = 5
# How often what has changed is copied again.
ROUNDS = 5
READ_TRIES = 3
PART_BYTES = 8 << 20
MOST_NAMED = 20


OnObject = Callable[[str], Awaitable[None]]


async def ignore_object(_key: str) -> None:
    """Nobody wants to know."""


@dataclass(frozen=True)
class Source:
    conn: Connection
    files: Objects
    state: Objects
    tables: Sequence[Table]
    archive: Writer
    # awaited with the key of each object, once it is in the archive
    on_object: OnObject = ignore_object


@dataclass
class Copied:
    """What the archive has of a session. `changed`: files that are not as the newest receipt has
    them; `restless`: objects that changed every time they were looked at; `damaged`: turns whose
    manifest the store does not have as their receipt has it."""

    session_id: UUID
    epoch: int
    running_turn: UUID | None
    files: dict[str, Written]
    state: dict[str, Written]
    rows: dict[str, Written] = field(default_factory=dict)
    row_count: int = 0
    receipts: int = 0
    changed: list[str] = field(default_factory=list)
    restless: list[str] = field(default_factory=list)
    damaged: list[str] = field(default_factory=list)
    index: Written | None = None

    @property
    def index_name(self) -> str:
        return f"sessions/{self.session_id}.json"

    def body(self) -> dict[str, Any]:
        """As it stands in the archive."""
        listed = {name: _listed(getattr(self, name)) for name in (FILES, STATE, "rows")}
        return {
            "session_id": str(self.session_id),
            "epoch": self.epoch,
            "running_turn": str(self.running_turn) if self.running_turn else None,
            "receipts": self.receipts,
            "changed": self.changed,
            "restless": self.restless,
            "damaged": self.damaged,
            **listed,
        }


def _listed(written: dict[str, Written]) -> dict[str, dict[str, Any]]:
    return {name: asdict(each) for name, each in written.items()}


async def copy_session(source: Source, session_id: UUID) -> Copied | None:
    """All of a session; None when it is not there any more, or is being deleted.

    Raises: BackupError, DatabaseUnavailable, StoreUnavailable.
    """
    for _ in range(TRIES):
        before = await dump.standing(source.conn, session_id)
        if before is None or before.deleting:
            return None
        prefix = f"{session_id}/"
        files, restless = await _copy_objects(source, source.files, FILES, prefix)
        state, more = await _copy_objects(source, source.state, STATE, prefix)
        async with dump.snapshot(source.conn):
            if await dump.standing(source.conn, session_id) != before:
                continue
            copied = Copied(session_id, before.epoch, before.running_turn, files, state)
            copied.restless = restless + more
            for table in source.tables:
                if table.of_session is not None:
                    copied.row_count += await copy_rows(
                        source, table, table.of_session, str(session_id), copied.rows, session_id
                    )
            receipts = await dump.receipts(source.conn, session_id)
        await _hold_against_receipts(source, copied, receipts)
        copied.index = await source.archive.add_json(copied.index_name, copied.body())
        return copied
    raise BackupError(
        f"The session {session_id} does not stand still.", hint="Try again when it is less busy."
    )


async def copy_rows(
    source: Source, table: Table, query: str, owner: str, into: dict[str, Written], *args: Any
) -> int:
    """The rows of a query, in parts that begin and end with a row; how many there are.

    Raises: DatabaseUnavailable.
    """
    held, parts = bytearray(), 0

    async def flush(upto: int) -> None:
        nonlocal parts
        name = f"rows/{owner}/{table.name}/{parts}"
        into[name] = await source.archive.add_bytes(name, bytes(held[:upto]))
        del held[:upto]
        parts += 1

    async def write(data: bytes) -> None:
        held.extend(data)
        # a line break within a row is written as an escape
        if len(held) >= PART_BYTES and (end := held.rfind(b"\n") + 1):
            await flush(end)

    rows = await dump.copy_out(source.conn, query, *args, write=write)
    if held:
        await flush(len(held))
    return rows


async def _copy_objects(
    source: Source, objects: Objects, name: str, prefix: str
) -> tuple[dict[str, Written], list[str]]:
    """Objects until two listings agree; what is in the archive, and what never stood still."""
    seen: dict[str, Seen] = {}
    copied: dict[str, Written] = {}
    changed: list[str] = []
    for _ in range(ROUNDS):
        listed = await objects.list(prefix)
        for key in copied.keys() - listed.keys():
            del copied[key]
        changed = [key for key, each in listed.items() if seen.get(key) != each]
        if not changed:
            break
        for key in changed:
            # an upload on its way: it is in its place, or was never there
            if not key.startswith(f"{prefix}uploads/"):
                written = await _copy_object(source.archive, objects, name, key)
                await source.on_object(key)
                if written is not None:
                    copied[key] = written
        seen = listed
    return copied, changed[:MOST_NAMED]


async def _copy_object(archive: Writer, objects: Objects, name: str, key: str) -> Written | None:
    """One object; None when it was deleted meanwhile.

    Raises: StoreUnavailable.
    """
    trouble: StoreUnavailable | None = None
    for _ in range(READ_TRIES):
        try:
            async with objects.open(key) as found:
                if found is None:
                    return None
                written = await archive.add(
                    f"{name}/{key}", found.size, found.chunks, found.metadata
                )
        except StoreUnavailable as error:
            trouble = error
            continue
        if written is not None:
            return written
    raise trouble or StoreUnavailable(f"{key} cannot be read as a whole.", hint="Try again.")


async def _hold_against_receipts(source: Source, copied: Copied, receipts: list[Proven]) -> None:
    """Every receipt's manifest is in the archive, and the newest one's files are as it says; what
    is otherwise is named.

    Raises: StoreUnavailable.
    """
    copied.receipts = len(receipts)
    for proven in receipts:
        manifest = copied.state.get(_manifest_key(copied.session_id, proven))
        if manifest is None or manifest.sha256 != proven.manifest_sha256:
            copied.damaged.append(str(proven.turn_id))
    if receipts and str(receipts[-1].turn_id) not in copied.damaged:
        key = _manifest_key(copied.session_id, receipts[-1])
        async with source.state.open(key) as found:
            document = b"".join([chunk async for chunk in found.chunks]) if found else b"{}"
        for entry in json.loads(document).get("entries", []):
            file = copied.files.get(f"{copied.session_id}/{entry['path']}")
            if entry["kind"] == "file" and (file is None or file.sha256 != entry["sha256"]):
                copied.changed.append(entry["path"])


def _manifest_key(session_id: UUID, proven: Proven) -> str:
    return f"{session_id}/manifests/{proven.turn_id}.json"
