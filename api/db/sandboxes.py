"""Sandboxes: an intent before a box exists, then what the run's events say of it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Literal
from uuid import UUID

from uuid_utils.compat import uuid7

from contracts.events import (
    EventBase,
    SandboxAttached,
    SandboxDestroyed,
    SandboxGone,
    SandboxReady,
    dumps,
)

if TYPE_CHECKING:
    from api.db.pool import Connection

INTEND = """
INSERT INTO sandboxes (id, session_id, turn_id, provider, key, state)
SELECT $1, $2, $3, $4, $5, 'intent'
WHERE NOT EXISTS (
    SELECT FROM sandboxes
    WHERE session_id = $2 AND provider = $4 AND state IN ('intent', 'live')
)
"""


async def intend(
    conn: Connection, session_id: UUID, turn_id: UUID, provider: str, epoch: int
) -> None:
    """Note that a box may come to be, unless one is noted for this provider already."""
    await conn.execute(INTEND, uuid7(), session_id, turn_id, provider, f"{session_id}-{epoch}")


# The box that is known under this id, else the intent it answers.
MARK_LIVE = """
UPDATE sandboxes SET state = 'live', provider_id = $3, ended_at = NULL, proof = NULL
WHERE id = (
    SELECT id FROM sandboxes
    WHERE session_id = $1 AND provider = $2 AND (provider_id = $3 OR state = 'intent')
    ORDER BY provider_id IS NULL, created_at DESC
    LIMIT 1
)
RETURNING id
"""
INSERT_LIVE = """
INSERT INTO sandboxes (id, session_id, turn_id, provider, key, provider_id, state)
VALUES ($1, $2, $3, $4, $5, $6, 'live')
"""
MARK_ENDED = """
UPDATE sandboxes
SET state = $3, proof = $4, ended_at = coalesce(ended_at, now())
WHERE session_id = $1 AND provider_id = $2 AND state <> 'destroyed'
"""


async def apply(conn: Connection, session_id: UUID, turn_id: UUID, event: EventBase) -> None:
    """Bring the rows in line with an event of the run; other events change nothing."""
    match event:
        case SandboxReady() | SandboxAttached():
            box = event.sandbox_id
            found = await conn.fetchval(MARK_LIVE, session_id, event.provider, box)
            if found is None:
                # a second box in one turn, after the first one was gone
                row = uuid7()
                key = f"{session_id}-{row}"
                await conn.execute(INSERT_LIVE, row, session_id, turn_id, event.provider, key, box)
        case SandboxGone():
            await mark_gone(conn, session_id, event.sandbox_id, event.reason)
        case SandboxDestroyed():
            proof = dumps(event.proof)
            await conn.execute(MARK_ENDED, session_id, event.sandbox_id, "destroyed", proof)
        case _:
            pass


async def mark_gone(conn: Connection, session_id: UUID, provider_id: str, reason: str) -> None:
    """Note that a box does not live any more."""
    await conn.execute(MARK_ENDED, session_id, provider_id, "gone", dumps(reason))


async def mark_destroyed(conn: Connection, session_id: UUID, provider_id: str, proof: str) -> None:
    """Note that a box was ended, with proof."""
    await conn.execute(MARK_ENDED, session_id, provider_id, "destroyed", dumps(proof))


@dataclass(frozen=True)
class Entry:
    """An entry of the ledger without a proof of death; `in_use` while the session has a turn."""

    id: UUID
    session_id: UUID
    provider: str
    provider_id: str | None
    state: Literal["intent", "live"]
    created_at: datetime
    in_use: bool


OPEN = """
SELECT b.id, b.session_id, b.provider, b.provider_id, b.state, b.created_at,
       EXISTS (
           SELECT FROM turns t WHERE t.session_id = b.session_id AND t.state = 'running'
       ) AS in_use
FROM sandboxes b WHERE b.state IN ('intent', 'live')
"""


async def unproven(conn: Connection) -> list[Entry]:
    """Every entry without a proof of death."""
    return [Entry(**row) for row in await conn.fetch(OPEN)]


RUNNING_SESSIONS = "SELECT session_id FROM turns WHERE state = 'running'"


async def sessions_in_use(conn: Connection) -> set[UUID]:
    """Sessions whose turn runs: their boxes come and go before the ledger hears of it."""
    return {row["session_id"] for row in await conn.fetch(RUNNING_SESSIONS)}


# As it was read: whatever happened to it since then, happened after the box was looked for.
CLOSE = """
UPDATE sandboxes SET state = 'gone', proof = $4, ended_at = now()
WHERE id = $1 AND state = $2 AND provider_id IS NOT DISTINCT FROM $3
"""


async def close(conn: Connection, entry: Entry, proof: str) -> None:
    """Close an entry whose box does not exist. The caller holds the session."""
    await conn.execute(CLOSE, entry.id, entry.state, entry.provider_id, dumps(proof))


ADOPT = """
UPDATE sandboxes SET state = 'live', provider_id = $2 WHERE id = $1 AND state = 'intent'
"""


async def adopt(conn: Connection, entry: Entry, provider_id: str) -> None:
    """Note the box that an intent has led to, when its turn could not tell."""
    await conn.execute(ADOPT, entry.id, provider_id)
