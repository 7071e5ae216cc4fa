"""Rows as text, out of the database and into an empty one.

COPY and not pg_dump: a session's rows are taken when its files were, each session at a moment of
its own, and an api's image has no programs of PostgreSQL. Tables are found in the catalogue, so
that one that a later version adds is carried too.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from uuid import UUID

import asyncpg

from api.db.pool import ACQUIRE_TIMEOUT, REFUSED, mapped

if TYPE_CHECKING:
    from api.db.pool import Connection

# A table of years of events is one statement.
STATEMENT_SECONDS = 6 * 3600
Write = Callable[[bytes], Coroutine[Any, Any, None]]


@contextlib.asynccontextmanager
async def connect(url: str) -> AsyncIterator[Connection]:
    """A connection whose statements may take long: all rows are one.

    Raises: DatabaseUnavailable.
    """
    with mapped(REFUSED):
        conn = await asyncpg.connect(
            url, timeout=ACQUIRE_TIMEOUT, command_timeout=STATEMENT_SECONDS
        )
    try:
        with mapped():
            yield conn
    finally:
        conn.terminate()


@dataclass(frozen=True)
class Table:
    """A table, and what reads its rows: those of the session $1, and those of no session."""

    name: str
    columns: list[str]
    of_session: str | None
    of_none: str | None


# The statements are made by PostgreSQL itself, which knows how its names are quoted. `owned` is all
# that refers to a session, directly or not. What a backup made is no part of it: `holds`.
TABLES = """
WITH RECURSIVE tables AS (
    SELECT c.oid, c.relname::text AS name
    FROM pg_class c
    WHERE c.relkind = 'r' AND c.relnamespace = 'public'::regnamespace
      AND c.relname NOT IN ('migrations', 'holds')
), refers AS (
    SELECT k.conrelid AS child, k.confrelid AS parent, a.attname AS by
    FROM pg_constraint k
    JOIN pg_attribute a ON a.attrelid = k.conrelid AND a.attnum = k.conkey[1]
    WHERE k.contype = 'f'
), owned AS (
    SELECT oid FROM tables WHERE name = 'sessions'
    UNION
    SELECT r.child FROM refers r JOIN owned o ON o.oid = r.parent
), columns AS (
    SELECT a.attrelid AS oid, array_agg(a.attname::text ORDER BY a.attnum) AS names,
           string_agg(quote_ident(a.attname), ', ' ORDER BY a.attnum) AS quoted,
           bool_or(a.attname = 'session_id') AS has_session,
           bool_or(a.attname = 'session_id' AND NOT a.attnotnull) AS may_have_none
    FROM pg_attribute a
    WHERE a.attnum > 0 AND NOT a.attisdropped AND a.attgenerated = ''
    GROUP BY a.attrelid
)
SELECT t.name, c.names AS columns,
       CASE WHEN t.oid NOT IN (SELECT oid FROM owned) THEN NULL
            WHEN t.name = 'sessions' THEN format('SELECT %s FROM sessions WHERE id = $1', c.quoted)
            WHEN c.has_session
            THEN format('SELECT %s FROM %I WHERE session_id = $1', c.quoted, t.name)
            ELSE format('SELECT %s FROM %I WHERE %I IN (SELECT id FROM turns'
                        ' WHERE session_id = $1)', c.quoted, t.name,
                        (SELECT r.by FROM refers r
                         WHERE r.child = t.oid AND r.parent = 'turns'::regclass LIMIT 1))
       END AS of_session,
       CASE WHEN t.oid NOT IN (SELECT oid FROM owned)
            THEN format('SELECT %s FROM %I', c.quoted, t.name)
            WHEN c.may_have_none
            THEN format('SELECT %s FROM %I WHERE session_id IS NULL', c.quoted, t.name)
       END AS of_none
FROM tables t JOIN columns c ON c.oid = t.oid
ORDER BY t.name
"""


async def tables(conn: Connection) -> list[Table]:
    """Every table whose rows a backup has."""
    return [Table(**row) for row in await conn.fetch(TABLES)]


SESSIONS = "SELECT id, deleting FROM sessions ORDER BY id"


async def sessions(conn: Connection) -> dict[UUID, bool]:
    """Every session, and whether it is being deleted."""
    return {row["id"]: row["deleting"] for row in await conn.fetch(SESSIONS)}


@contextlib.asynccontextmanager
async def snapshot(conn: Connection) -> AsyncIterator[None]:
    """Every read of the block sees the same moment."""
    async with conn.transaction(isolation="repeatable_read", readonly=True):
        yield


@dataclass(frozen=True)
class Standing:
    """How far a session is. A turn that starts, or changes hands, raises the epoch."""

    epoch: int
    deleting: bool
    running_turn: UUID | None


STANDING = """
SELECT s.epoch, s.deleting,
       (SELECT t.id FROM turns t WHERE t.session_id = s.id AND t.state = 'running') AS running_turn
FROM sessions s WHERE s.id = $1
"""


async def standing(conn: Connection, session_id: UUID) -> Standing | None:
    row = await conn.fetchrow(STANDING, session_id)
    return Standing(**row) if row is not None else None


@dataclass(frozen=True)
class Proven:
    """A receipt: whose, and of which manifest."""

    turn_id: UUID
    manifest_sha256: str


RECEIPTS = """
SELECT id AS turn_id, receipt ->> 'manifest_sha256' AS manifest_sha256 FROM turns
WHERE session_id = $1 AND receipt IS NOT NULL AND ended_at IS NOT NULL AND epoch IS NOT NULL
ORDER BY epoch
"""


async def receipts(conn: Connection, session_id: UUID) -> list[Proven]:
    """The session's receipts in the order of its turns."""
    return [Proven(**row) for row in await conn.fetch(RECEIPTS, session_id)]


async def copy_out(conn: Connection, query: str, *args: Any, write: Write) -> int:
    """Hand the rows that a query of `Table` gives to `write`, as text; how many there are."""
    done = await conn.copy_from_query(query, *args, output=write, format="text", encoding="utf8")
    return int(done.split()[-1])


async def copy_in(conn: Connection, table: str, columns: Sequence[str], text: bytes) -> int:
    """Store rows that `copy_out` gave; how many there are."""

    async def once() -> AsyncIterator[bytes]:
        yield text

    done = await conn.copy_to_table(
        table, source=once(), columns=list(columns), format="text", encoding="utf8"
    )
    return int(done.split()[-1])


WITH_ROWS = """
SELECT c.relname::text AS name, format('SELECT EXISTS (SELECT FROM public.%I)', c.relname) AS query
FROM pg_class c
WHERE c.relkind = 'r' AND c.relnamespace = 'public'::regnamespace AND c.relname <> 'migrations'
ORDER BY 1
"""


async def tables_with_rows(conn: Connection) -> list[str]:
    found = await conn.fetch(WITH_ROWS)
    return [row["name"] for row in found if await conn.fetchval(row["query"])]


OTHERS = """
SELECT count(*) FROM pg_stat_activity
WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'
"""


async def other_clients(conn: Connection) -> int:
    """How many others are connected to this database."""
    return int(await conn.fetchval(OTHERS))


CLEAR = "DROP SCHEMA public CASCADE; CREATE SCHEMA public"


async def clear(conn: Connection) -> None:
    """Remove tables that have no rows, so that those of another version can be made."""
    await conn.execute(CLEAR)


# Rows come session by session, and may refer to what comes later; `dangling` looks at the end.
UNCHECKED = "SET LOCAL session_replication_role = replica"
CHECKED = "SET LOCAL session_replication_role = origin"


@contextlib.asynccontextmanager
async def any_order(conn: Connection) -> AsyncIterator[None]:
    """References are not looked at while rows are stored. Inside a transaction."""
    await conn.execute(UNCHECKED)
    yield
    await conn.execute(CHECKED)


REFERENCES = """
SELECT k.conname::text AS name, format(
    'SELECT count(*) FROM %s c LEFT JOIN %s p ON p.%I = c.%I'
    ' WHERE c.%I IS NOT NULL AND p.%I IS NULL',
    k.conrelid::regclass, k.confrelid::regclass, p.attname, c.attname, c.attname, p.attname
) AS query
FROM pg_constraint k
JOIN pg_attribute c ON c.attrelid = k.conrelid AND c.attnum = k.conkey[1]
JOIN pg_attribute p ON p.attrelid = k.confrelid AND p.attnum = k.confkey[1]
WHERE k.contype = 'f' AND k.connamespace = 'public'::regnamespace AND cardinality(k.conkey) = 1
"""


async def dangling(conn: Connection) -> list[str]:
    """References that lead nowhere."""
    found = await conn.fetch(REFERENCES)
    return [row["name"] for row in found if await conn.fetchval(row["query"])]


COUNTERS = """
SELECT format('SELECT setval(%L, greatest(max(%I), 1)) FROM %I',
              pg_get_serial_sequence(quote_ident(c.relname), a.attname), a.attname, c.relname)
FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid
WHERE c.relkind = 'r' AND c.relnamespace = 'public'::regnamespace
  AND a.attnum > 0 AND NOT a.attisdropped
  AND pg_get_serial_sequence(quote_ident(c.relname), a.attname) IS NOT NULL
"""
# The sandboxes and the api processes of the stack that was backed up are not this stack's.
FORGET_SANDBOXES = """
UPDATE sandboxes SET state = 'gone', ended_at = now(),
       proof = '"a sandbox of the stack that was backed up"'
WHERE state IN ('intent', 'live')
"""
FORGET_LEASES = "UPDATE leases SET owner = NULL, expires_at = '-infinity'"


async def settle(conn: Connection) -> None:
    """After the last row: counters go on behind them, what was alive elsewhere is not here."""
    for row in await conn.fetch(COUNTERS):
        await conn.execute(row[0])
    await conn.execute(FORGET_SANDBOXES)
    await conn.execute(FORGET_LEASES)
