"""Sessions: rows in, contract bodies out."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING
from uuid import UUID

from contracts.bodies import Permissions, Session

if TYPE_CHECKING:
    from api.db.pool import Connection


@dataclass(frozen=True)
class NewSession:
    id: UUID
    title: str
    harness: str
    provider: str
    model: str | None
    reasoning: str | None
    permissions: Permissions


@dataclass(frozen=True)
class Locked:
    """What a turn or a delete must know of the session it holds."""

    epoch: int
    last_seq: int
    deleting: bool
    running_turn: UUID | None
    next_queued: UUID | None


@dataclass(frozen=True)
class Removed:
    turns: int
    events: int


INSERT = """
INSERT INTO sessions (id, title, harness, provider, model, reasoning, permissions)
VALUES ($1, $2, $3, $4, $5, $6, $7)
RETURNING id, title, harness, provider, model, reasoning, permissions, archived,
          created_at, updated_at, last_seq, NULL::uuid AS running_turn, 0 AS queued,
          NULL::boolean AS durable
"""


async def insert(conn: Connection, new: NewSession) -> Session:
    """Store a new session."""
    row = await conn.fetchrow(
        INSERT,
        new.id,
        new.title,
        new.harness,
        new.provider,
        new.model,
        new.reasoning,
        new.permissions,
    )
    assert row is not None
    return Session(**row)


GET = """
SELECT s.id, s.title, s.harness, s.provider, s.model, s.reasoning, s.permissions, s.archived,
       s.created_at, s.updated_at, s.last_seq, t.id AS running_turn,
       (SELECT count(*) FROM turns q WHERE q.session_id = s.id AND q.state = 'queued') AS queued,
       (SELECT e.receipt IS NOT NULL FROM turns e
        WHERE e.session_id = s.id AND e.epoch IS NOT NULL AND e.ended_at IS NOT NULL
        ORDER BY e.epoch DESC LIMIT 1) AS durable
FROM sessions s LEFT JOIN turns t ON t.session_id = s.id AND t.state = 'running'
WHERE s.id = $1
"""


async def get(conn: Connection, session_id: UUID) -> Session | None:
    row = await conn.fetchrow(GET, session_id)
    return Session(**row) if row is not None else None


PAGE = """
SELECT s.id, s.title, s.harness, s.provider, s.model, s.reasoning, s.permissions, s.archived,
       s.created_at, s.updated_at, s.last_seq, t.id AS running_turn,
       (SELECT count(*) FROM turns q WHERE q.session_id = s.id AND q.state = 'queued') AS queued,
       (SELECT e.receipt IS NOT NULL FROM turns e
        WHERE e.session_id = s.id AND e.epoch IS NOT NULL AND e.ended_at IS NOT NULL
        ORDER BY e.epoch DESC LIMIT 1) AS durable
FROM sessions s LEFT JOIN turns t ON t.session_id = s.id AND t.state = 'running'
WHERE s.archived = $1
  AND ($2::timestamptz IS NULL OR (s.updated_at, s.id) < ($2, $3::uuid))
ORDER BY s.updated_at DESC, s.id DESC
LIMIT $4
"""


async def page(
    conn: Connection,
    *,
    archived: bool,
    before: tuple[datetime, UUID] | None,
    limit: int,
) -> list[Session]:
    """Sessions in the order of their last activity, newest first, older than `before`."""
    at, session_id = before if before is not None else (None, None)
    return [Session(**row) for row in await conn.fetch(PAGE, archived, at, session_id, limit)]


PATCH = """
UPDATE sessions
SET title = coalesce($2, title), archived = coalesce($3, archived), updated_at = now()
WHERE id = $1
"""


async def patch(
    conn: Connection, session_id: UUID, *, title: str | None, archived: bool | None
) -> None:
    """Change what is given; None leaves a field as it is."""
    await conn.execute(PATCH, session_id, title, archived)


# No join here: the lock may be waited for, and a joined row would be from before the wait.
LOCK = "SELECT epoch, last_seq, deleting FROM sessions WHERE id = $1 FOR NO KEY UPDATE"
LOCK_NOW = LOCK + " SKIP LOCKED"
UNENDED = """
SELECT (SELECT id FROM turns WHERE session_id = $1 AND state = 'running') AS running_turn,
       (SELECT id FROM turns WHERE session_id = $1 AND state = 'queued'
        ORDER BY position LIMIT 1) AS next_queued
"""


async def lock(conn: Connection, session_id: UUID, *, wait: bool = True) -> Locked | None:
    """Hold the session's row until the transaction ends.

    None when there is no such session, and without `wait` also when somebody else holds it.
    """
    row = await conn.fetchrow(LOCK if wait else LOCK_NOW, session_id)
    if row is None:
        return None
    unended = await conn.fetchrow(UNENDED, session_id)
    assert unended is not None
    return Locked(**row, **unended)


START_TURN = """
UPDATE sessions
SET epoch = $2, updated_at = now(), title = CASE WHEN title = '' THEN $3 ELSE title END
WHERE id = $1
"""


async def start_turn(conn: Connection, session_id: UUID, epoch: int, title: str) -> None:
    """Grant the session to the turn that has this epoch; `title` is for one that has none."""
    await conn.execute(START_TURN, session_id, epoch, title)


RAISE_EPOCH = "UPDATE sessions SET epoch = epoch + 1 WHERE id = $1 RETURNING epoch"


async def raise_epoch(conn: Connection, session_id: UUID) -> int:
    """Grant the running turn anew: from here on, whoever carried it is fenced out."""
    return int(await conn.fetchval(RAISE_EPOCH, session_id))


TOUCH = "UPDATE sessions SET updated_at = now() WHERE id = $1"


async def touch(conn: Connection, session_id: UUID) -> None:
    """Note activity, for the order of the list."""
    await conn.execute(TOUCH, session_id)


MARK_DELETING = "UPDATE sessions SET deleting = true WHERE id = $1"


async def mark_deleting(conn: Connection, session_id: UUID) -> None:
    """From here on the session takes no turn any more."""
    await conn.execute(MARK_DELETING, session_id)


DELETE_EVENTS = "DELETE FROM events WHERE session_id = $1"
DELETE_SANDBOXES = "DELETE FROM sandboxes WHERE session_id = $1"
DELETE_LEASES = """
DELETE FROM leases USING turns WHERE turns.id = leases.turn_id AND turns.session_id = $1
"""
DELETE_TURNS = "DELETE FROM turns WHERE session_id = $1"
DELETE = "DELETE FROM sessions WHERE id = $1"


async def delete(conn: Connection, session_id: UUID) -> Removed:
    """Remove every row of the session."""
    events = _count(await conn.execute(DELETE_EVENTS, session_id))
    await conn.execute(DELETE_SANDBOXES, session_id)
    await conn.execute(DELETE_LEASES, session_id)
    turns = _count(await conn.execute(DELETE_TURNS, session_id))
    await conn.execute(DELETE, session_id)
    return Removed(turns, events)


def _count(status: str) -> int:
    """The number in PostgreSQL's `DELETE 12`."""
    return int(status.rsplit(" ", 1)[-1])
