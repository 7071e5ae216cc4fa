"""All SQL of the tests of the api: what they look up or change behind its back."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any
from uuid import UUID

import asyncpg
from uuid_utils.compat import uuid7

from api.db.pool import open_database

if TYPE_CHECKING:
    from api.db.pool import Connection, Record
    from api.settings import StorageSettings
    from tests.support.services import Postgres

SandboxRow = tuple[str, str | None, str | None]


@contextlib.asynccontextmanager
async def connect(where: StorageSettings | str) -> AsyncIterator[asyncpg.Connection[Record]]:
    """A connection of its own to the database of these settings, or at this address."""
    url = where if isinstance(where, str) else where.database_url.get_secret_value()
    conn = await asyncpg.connect(url)
    try:
        yield conn
    finally:
        await conn.close()


# The server and its databases


async def create_database(server: Postgres) -> str:
    """An empty one; its address."""
    name = f"empty_{uuid7().hex}"
    async with connect(server.url()) as conn:
        await conn.execute(f"CREATE DATABASE {name}")
    return server.url(name)


@contextlib.asynccontextmanager
async def database_away(server_url: str, name: str) -> AsyncIterator[None]:
    """For the time of the block, nobody is connected to the database nor can be."""
    async with open_database(server_url) as database, database.connection() as conn:
        await conn.execute(f"ALTER DATABASE {name} ALLOW_CONNECTIONS false")
        await conn.fetchval(
            "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE datname = $1", name
        )
        try:
            yield
        finally:
            await conn.execute(f"ALTER DATABASE {name} ALLOW_CONNECTIONS true")


async def cut_listeners(conn: Connection) -> int:
    """End the connections that listen for notifications; how many there were."""
    return int(
        await conn.fetchval(
            "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity"
            " WHERE query LIKE 'LISTEN%' AND datname = current_database()"
        )
    )


async def count_waiting(conn: Connection) -> int:
    """How many statements in this database wait for a lock."""
    return int(
        await conn.fetchval(
            "SELECT count(*) FROM pg_locks WHERE NOT granted AND pid IN"
            " (SELECT pid FROM pg_stat_activity WHERE datname = current_database())"
        )
    )


async def list_tables(conn: Connection) -> list[str]:
    rows = await conn.fetch(
        "SELECT relname FROM pg_class WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace"
    )
    return sorted(row[0] for row in rows)


async def table_exists(conn: Connection, name: str) -> bool:
    return await conn.fetchval("SELECT to_regclass($1)", name) is not None


async def dump_rows(conn: Connection, table: str) -> list[str]:
    """Every row of a table as text."""
    rows = await conn.fetch(f'SELECT t::text FROM "{table}" AS t')  # noqa: S608 - a test's own name
    return sorted(row[0] for row in rows)


async def explain(conn: Connection, query: str, *args: Any) -> str:
    """The plan by which a query was executed, with up-to-date statistics."""
    await conn.execute("ANALYZE")
    plan = await conn.fetch("EXPLAIN (ANALYZE, FORMAT TEXT) " + query, *args)
    return "\n".join(row[0] for row in plan)


async def add_migration(conn: Connection, number: int) -> None:
    """As if a newer version had migrated this database."""
    await conn.execute("INSERT INTO migrations VALUES ($1, 'x', 'y')", number)


# Sessions, turns and leases


async def find_session(conn: Connection, turn_id: UUID) -> UUID:
    found = await conn.fetchval("SELECT session_id FROM turns WHERE id = $1", turn_id)
    assert found is not None
    return UUID(str(found))


async def read_epoch(conn: Connection, session_id: UUID) -> int:
    return int(await conn.fetchval("SELECT epoch FROM sessions WHERE id = $1", session_id))


async def raise_epoch(conn: Connection, session_id: UUID) -> None:
    await conn.execute("UPDATE sessions SET epoch = epoch + 1 WHERE id = $1", session_id)


async def read_turn(conn: Connection, turn_id: UUID) -> tuple[str, bool, Any, int]:
    """Its state, whether it was accepted, its receipt and its last number."""
    row = await conn.fetchrow(
        "SELECT state, accepted, receipt, last_seq FROM turns WHERE id = $1", turn_id
    )
    assert row is not None
    state, accepted, receipt, last_seq = row
    return state, accepted, receipt, last_seq


async def request_cancel(conn: Connection, turn_id: UUID) -> None:
    await conn.execute("UPDATE turns SET cancel_requested = true WHERE id = $1", turn_id)


async def expire_lease(conn: Connection, turn_id: UUID) -> None:
    await conn.execute("UPDATE leases SET expires_at = now() WHERE turn_id = $1", turn_id)


async def end_lease_in(conn: Connection, turn_id: UUID, left: timedelta) -> None:
    await conn.execute(
        "UPDATE leases SET expires_at = now() + $2::interval WHERE turn_id = $1", turn_id, left
    )


async def expire_leases(conn: Connection) -> None:
    await conn.execute("UPDATE leases SET expires_at = now()")


async def count_lease_updates(conn: Connection) -> tuple[int, int]:
    """Heap-only updates of leases in this transaction, and all of them."""
    row = await conn.fetchrow(
        "SELECT n_tup_hot_upd, n_tup_upd FROM pg_stat_xact_user_tables WHERE relname = 'leases'"
    )
    assert row is not None
    return row[0], row[1]


async def read_lease_end(conn: Connection) -> datetime:
    """When the only lease ends."""
    found = await conn.fetchval("SELECT expires_at FROM leases")
    assert isinstance(found, datetime)
    return found


async def is_past(conn: Connection, moment: datetime) -> bool:
    """By the database's clock."""
    return bool(await conn.fetchval("SELECT now() >= $1::timestamptz", moment))


# Holds


async def hold_session(conn: Connection, session_id: UUID, lasts: timedelta) -> None:
    await conn.execute(
        "INSERT INTO holds VALUES ($1, $2, now() + $3::interval)", session_id, uuid7(), lasts
    )


async def read_hold(conn: Connection, session_id: UUID) -> datetime:
    """Until when the session is held."""
    until: datetime = await conn.fetchval(
        "SELECT expires_at FROM holds WHERE session_id = $1", session_id
    )
    return until


async def expire_holds(conn: Connection) -> None:
    await conn.execute("UPDATE holds SET expires_at = '-infinity'")


# The ledger of sandboxes


async def list_sandboxes(conn: Connection, session_id: UUID) -> list[SandboxRow]:
    """State, the provider's id and proof of each, oldest first."""
    rows = await conn.fetch(
        # as text, and decoded here: a proof may have a NUL, which PostgreSQL does not decode
        "SELECT state, provider_id, proof::text FROM sandboxes"
        " WHERE session_id = $1 ORDER BY created_at",
        session_id,
    )
    return [(state, box, proof and json.loads(proof)) for state, box, proof in rows]


async def move_sandboxes(conn: Connection, session_id: UUID, provider: str) -> None:
    await conn.execute(
        "UPDATE sandboxes SET provider = $2 WHERE session_id = $1", session_id, provider
    )


async def age_sandboxes(conn: Connection, session_id: UUID, age: timedelta) -> None:
    await conn.execute(
        "UPDATE sandboxes SET created_at = now() - $2::interval WHERE session_id = $1",
        session_id,
        age,
    )


# The audit


async def lock_audit(conn: Connection) -> None:
    """Nobody reads or writes it until the transaction ends."""
    await conn.execute("LOCK TABLE audit IN ACCESS EXCLUSIVE MODE")


@contextlib.asynccontextmanager
async def audit_away(url: str) -> AsyncIterator[None]:
    """For the time of the block, there is no such table."""
    async with connect(url) as conn:
        await conn.execute("ALTER TABLE audit RENAME TO away")
        yield
        await conn.execute("ALTER TABLE away RENAME TO audit")


async def age_audit(conn: Connection, first: int, age: timedelta) -> None:
    """The first so many records become so old."""
    await conn.execute("UPDATE audit SET at = now() - $2::interval WHERE id <= $1", first, age)


# What a model of the turns compares itself with


async def pass_time(conn: Connection, by: timedelta) -> None:
    """Let leases, holds and questions be older: as if the database's clock had gone on."""
    await conn.execute("UPDATE leases SET expires_at = expires_at - $1::interval", by)
    await conn.execute("UPDATE holds SET expires_at = expires_at - $1::interval", by)
    await conn.execute("UPDATE permissions SET asked_at = asked_at - $1::interval", by)


async def list_turns(conn: Connection, session_id: UUID) -> list[tuple[UUID, str, int | None]]:
    """Each turn with its state and epoch: those that ran in their order, then those that wait."""
    found = await conn.fetch(
        "SELECT id, state, epoch FROM turns WHERE session_id = $1"
        " ORDER BY epoch NULLS LAST, position",
        session_id,
    )
    return [(row["id"], row["state"], row["epoch"]) for row in found]


async def list_leases(conn: Connection, session_id: UUID) -> dict[UUID, UUID | None]:
    """Who has the lease of each turn."""
    found = await conn.fetch(
        "SELECT l.turn_id, l.owner FROM leases l JOIN turns t ON t.id = l.turn_id"
        " WHERE t.session_id = $1",
        session_id,
    )
    return {row["turn_id"]: row["owner"] for row in found}


async def list_holds(conn: Connection, session_id: UUID) -> list[UUID]:
    found = await conn.fetch("SELECT owner FROM holds WHERE session_id = $1", session_id)
    return [row["owner"] for row in found]


async def list_answers(
    conn: Connection, session_id: UUID
) -> dict[str, tuple[str, str | None, str | None, bool]]:
    """The state of each question, the option, who chose it, and whether the run has said so."""
    found = await conn.fetch(
        "SELECT permission_id, state, option_id::text AS option, answered_by, delivered"
        " FROM permissions WHERE session_id = $1",
        session_id,
    )
    return {
        row["permission_id"]: (
            row["state"],
            row["option"] and json.loads(row["option"]),
            row["answered_by"],
            row["delivered"],
        )
        for row in found
    }


async def list_events(conn: Connection, session_id: UUID) -> list[tuple[int, UUID, dict[str, Any]]]:
    found = await conn.fetch(
        "SELECT seq, turn_id, body::text AS body FROM events WHERE session_id = $1 ORDER BY seq",
        session_id,
    )
    return [(row["seq"], row["turn_id"], json.loads(row["body"])) for row in found]
