"""Holds: sessions that start no turn while a backup copies them."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING
from uuid import UUID

if TYPE_CHECKING:
    from api.db.pool import Connection

# Renewed well before; after the death of whoever held it, a session stands still this long.
LASTS = timedelta(seconds=60)

TAKE = """
INSERT INTO holds (session_id, owner, expires_at) VALUES ($1, $2, now() + $3)
ON CONFLICT (session_id) DO UPDATE SET owner = $2, expires_at = now() + $3
WHERE holds.owner = $2 OR holds.expires_at <= now()
RETURNING owner
"""


async def take(conn: Connection, session_id: UUID, owner: UUID) -> bool:
    """Keep the session's next turn from starting; false when somebody else does already.

    The caller holds the session's row, as does whoever starts a turn.
    """
    return await conn.fetchval(TAKE, session_id, owner, LASTS) is not None


RENEW = "UPDATE holds SET expires_at = now() + $2 WHERE owner = $1"


async def renew(conn: Connection, owner: UUID) -> None:
    """Keep all that `owner` holds."""
    await conn.execute(RENEW, owner, LASTS)


RELEASE = "DELETE FROM holds WHERE owner = $1 AND ($2::uuid IS NULL OR session_id = $2)"


async def release(conn: Connection, owner: UUID, session_id: UUID | None = None) -> None:
    """Let turns start again, in one session or in all that `owner` holds."""
    await conn.execute(RELEASE, owner, session_id)
