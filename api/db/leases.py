"""Leases: which api process carries a running turn, and until when."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING
from uuid import UUID

if TYPE_CHECKING:
    from api.db.pool import Connection


@dataclass(frozen=True)
class Holder:
    """An api process, and how long its leases last without a heartbeat.

    Everyone reads PostgreSQL's clock and nobody their own.
    """

    id: UUID
    expires_after: timedelta


@dataclass(frozen=True)
class Held:
    """A lease that the heartbeat has extended."""

    turn_id: UUID
    cancel_requested: bool


GRANT = """
INSERT INTO leases (turn_id, owner, expires_at) VALUES ($1, $2, now() + $3)
ON CONFLICT (turn_id) DO UPDATE SET owner = $2, expires_at = now() + $3
"""


async def grant(conn: Connection, turn_id: UUID, holder: Holder) -> None:
    """Give a turn to a process. The caller holds the session and has raised its epoch."""
    await conn.execute(GRANT, turn_id, holder.id, holder.expires_after)


EXTEND = """
UPDATE leases l SET expires_at = now() + $3
FROM turns t
WHERE t.id = l.turn_id AND l.owner = $1 AND l.turn_id = ANY($2::uuid[])
RETURNING l.turn_id, t.cancel_requested
"""


async def extend(conn: Connection, holder: Holder, carried: Collection[UUID]) -> list[Held]:
    """The heartbeat of a process for all that it carries; what it does not hold is left out."""
    rows = await conn.fetch(EXTEND, holder.id, list(carried), holder.expires_after)
    return [Held(**row) for row in rows]


GIVE_UP = "UPDATE leases SET owner = NULL, expires_at = '-infinity' WHERE owner = $1"


async def give_up(conn: Connection, holder: Holder) -> None:
    """Let go of all that a process holds, so that the next one need not wait."""
    await conn.execute(GIVE_UP, holder.id)


# What a process carries itself is its own, also when its heartbeat was late.
FREE = """
SELECT l.turn_id, t.session_id FROM leases l JOIN turns t ON t.id = l.turn_id
WHERE l.expires_at <= now() AND NOT (l.owner IS NOT DISTINCT FROM $1 AND t.id = ANY($2::uuid[]))
"""


async def free(
    conn: Connection, holder: Holder, carried: Collection[UUID]
) -> list[tuple[UUID, UUID]]:
    """Running turns that nobody carries any more: (turn, session)."""
    rows = await conn.fetch(FREE, holder.id, list(carried))
    return [(row["turn_id"], row["session_id"]) for row in rows]


IS_FREE = "SELECT expires_at <= now() FROM leases WHERE turn_id = $1 FOR UPDATE"


async def is_free(conn: Connection, turn_id: UUID) -> bool:
    """Whether a turn may be taken; asked again while the session is held."""
    return bool(await conn.fetchval(IS_FREE, turn_id))


DROP = "DELETE FROM leases WHERE turn_id = $1"


async def drop(conn: Connection, turn_id: UUID) -> None:
    """The turn has ended."""
    await conn.execute(DROP, turn_id)
