"""A backup of a stack that is at work: sessions one by one, those that are idle first."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import IO, TYPE_CHECKING, Any
from uuid import UUID

from api.backup.archive import FORMAT, HEAD, MANIFEST, Writer, Written
from api.backup.errors import WrongSchema
from api.backup.holder import Holder
from api.backup.objects import Objects
from api.backup.session import (
    MOST_NAMED,
    Copied,
    OnObject,
    Source,
    copy_rows,
    copy_session,
    ignore_object,
)
from api.db import dump
from api.db.migrate import applied_migrations, load
from api.store import open_client

if TYPE_CHECKING:
    from api.db.pool import Connection
    from api.settings import StorageSettings

Say = Callable[[str], None]

# How often a session whose turn runs is looked at.
LOOK_EVERY = 0.2
SAY_EVERY = 2.0
NO_SESSION = "-"


@dataclass
class Report:
    """What is in a backup."""

    schema: int = 0
    sessions: int = 0
    files: int = 0
    rows: int = 0
    receipts: int = 0
    bytes: int = 0
    seconds: float = 0.0
    # sessions that were copied in the middle of a turn
    mid_turn: list[str] = field(default_factory=list)
    # by session: files that are not as its newest receipt has them
    changed: dict[str, list[str]] = field(default_factory=dict)
    # by session: what changed each time that it was looked at
    restless: dict[str, list[str]] = field(default_factory=dict)
    # by session: turns whose manifest is not what their receipt says
    damaged: dict[str, list[str]] = field(default_factory=dict)

    @property
    def whole(self) -> bool:
        """Whether no turn was cut in two, and all that receipts name is there."""
        return not self.mid_turn and not self.damaged

    def add(self, copied: Copied) -> None:
        name = str(copied.session_id)
        self.sessions += 1
        self.files += len(copied.files)
        self.rows += copied.row_count
        self.receipts += copied.receipts
        if copied.running_turn is not None:
            self.mid_turn.append(name)
        for kind in ("changed", "restless", "damaged"):
            if found := getattr(copied, kind):
                getattr(self, kind)[name] = found[:MOST_NAMED]


async def create(
    settings: StorageSettings,
    file: IO[bytes],
    *,
    wait: float,
    say: Say,
    on_object: OnObject = ignore_object,
) -> Report:
    """Write a backup. A session whose turn runs is waited for, for `wait` seconds in all; after
    that it is copied as it is, and named. `on_object` is awaited after each copied object.

    Raises: BackupError, DatabaseUnavailable, StoreUnavailable, OSError.
    """
    url = settings.database_url.get_secret_value()
    started = time.monotonic()
    async with (
        dump.connect(url) as conn,
        open_client(settings) as client,
        Holder.open(url) as holder,
    ):
        schema = await _schema(conn)
        source = Source(
            conn,
            Objects(client, settings.s3_bucket),
            Objects(client, settings.s3_state_bucket),
            await dump.tables(conn),
            Writer(file),
            on_object,
        )
        await source.archive.add_json(HEAD, _head(schema, source))
        making = _Making(source, holder, say)
        await making.sessions(wait)
        await making.the_rest()
        making.report.schema = len(schema)
        await source.archive.add_json(MANIFEST, making.manifest())
        await source.archive.end()
    making.report.bytes = source.archive.bytes
    making.report.seconds = round(time.monotonic() - started, 1)
    return making.report


async def _schema(conn: Connection) -> list[tuple[int, str, str]]:
    """Raises: WrongSchema."""
    applied, known = await applied_migrations(conn), len(load())
    if len(applied) != known:
        raise WrongSchema(
            f"The database has schema {len(applied)}, this version of Holdfast has {known}.",
            hint="Take the backup with the version that last ran on this database.",
        )
    return applied


def _head(schema: list[tuple[int, str, str]], source: Source) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "created_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "schema": len(schema),
        "migrations": [list(each) for each in schema],
        "tables": {table.name: table.columns for table in source.tables},
    }


class _Making:
    def __init__(self, source: Source, holder: Holder, say: Say) -> None:
        self._source = source
        self._holder = holder
        self._say = say
        self._said = 0.0
        self._all = 0
        self._indexes: dict[str, Written] = {}
        self._rest: dict[str, Written] = {}
        self.report = Report()

    async def sessions(self, wait: float) -> None:
        """Those that are there now, but for those that are being deleted."""
        found = await dump.sessions(self._source.conn)
        self._all = len(found)
        busy: list[UUID] = []
        for session_id, deleting in found.items():
            standing = None if deleting else await self._holder.hold(session_id)
            if standing is not None and standing.running_turn is not None:
                await self._holder.release(session_id)
                busy.append(session_id)
            elif standing is not None:
                await self._copy(session_id)
        if busy:
            self._say(f"waiting for {len(busy)} turns to end, {wait:.0f} s at most")
            await self._copy_busy(busy, wait)

    async def _copy_busy(self, busy: list[UUID], wait: float) -> None:
        """Each as soon as its turn has ended; the next one is held until the session is copied."""
        deadline = time.monotonic() + wait
        waiting = [each for each in busy if await self._holder.hold(each) is not None]
        while waiting:
            late = time.monotonic() >= deadline
            for session_id in list(waiting):
                standing = await dump.standing(self._source.conn, session_id)
                if late or standing is None or standing.running_turn is None:
                    await self._copy(session_id)
                    waiting.remove(session_id)
            if waiting:
                await asyncio.sleep(LOOK_EVERY)

    async def _copy(self, session_id: UUID) -> None:
        copied = await copy_session(self._source, session_id)
        await self._holder.release(session_id)
        if copied is None:
            return
        assert copied.index is not None
        self._indexes[copied.index_name] = copied.index
        self.report.add(copied)
        if time.monotonic() - self._said > SAY_EVERY:
            self._said = time.monotonic()
            self._say(
                f"{self.report.sessions} of {self._all} sessions, {self.report.files} files,"
                f" {self._source.archive.bytes / 1e6:.1f} MB"
            )

    async def the_rest(self) -> None:
        """Rows that are no session's, all of one moment."""
        async with dump.snapshot(self._source.conn):
            for table in self._source.tables:
                if table.of_none is not None:
                    self.report.rows += await copy_rows(
                        self._source, table, table.of_none, NO_SESSION, self._rest
                    )

    def manifest(self) -> dict[str, Any]:
        listed = {**self._indexes, **self._rest}
        return {
            "format": FORMAT,
            "sessions": self.report.sessions,
            "files": self.report.files,
            "rows": self.report.rows,
            "receipts": self.report.receipts,
            "mid_turn": self.report.mid_turn,
            "members": {name: each.sha256 for name, each in listed.items()},
        }
