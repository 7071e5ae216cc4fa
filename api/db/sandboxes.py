"""Sandboxes: an intent before a box exists, then what the run's events say of it."""

from __future__ import annotations

from typing import TYPE_CHECKING
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
