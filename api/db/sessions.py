"""Sessions: rows in, contract bodies out."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any
from uuid import UUID

from api.db import usage
from api.db.search import NOTHING, Sought
from contracts.bodies import (
    Budget,
    Durability,
    LastTurn,
    Permissions,
    Session,
    SessionPatch,
    SessionState,
)
from contracts.egress import Egress

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
    durability: Durability = "mount"
    made_by: str = "owner"
    egress: Egress = "off"
    egress_hosts: Sequence[str] = ()
    budget: Budget | None = None


@dataclass(frozen=True)
class Locked:
    """What a turn or a delete must know of the session it holds."""

    epoch: int
    last_seq: int
    deleting: bool
    running_turn: UUID | None
    next_queued: UUID | None
    # a backup copies it, and no turn starts meanwhile
    held: bool = False


@dataclass(frozen=True)
class Removed:
    turns: int
    events: int


INSERT = """
INSERT INTO sessions (id, title, harness, provider, model, reasoning, permissions, durability,
                      made_by, egress, egress_hosts)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)
"""


async def insert(conn: Connection, new: NewSession) -> Session:
    """Store a new session."""
    await conn.execute(
        INSERT,
        new.id,
        new.title,
        new.harness,
        new.provider,
        new.model,
        new.reasoning,
        new.permissions,
        new.durability,
        new.made_by,
        new.egress,
        list(new.egress_hosts),
    )
    if new.budget is not None:
        await usage.set_budget(conn, new.id, new.budget)
    session = await get(conn, new.id)
    assert session is not None
    return session


# Until the transaction ends: two at once would both count what was there before them.
ONE_MAKER = "SELECT pg_advisory_xact_lock(hashtextextended('holdfast sessions of ' || $1, 0))"
COUNT_MADE_BY = "SELECT count(*) FROM sessions WHERE made_by = $1"


async def count_made_by(conn: Connection, name: str) -> int:
    """How many sessions a token has made that are still there; none are made meanwhile."""
    await conn.execute(ONE_MAKER, name)
    return int(await conn.fetchval(COUNT_MADE_BY, name))


# What a session is like: `t` is the turn that runs, `l` the newest that runs or ran, `e` the
# newest that has ended, `r` the newest that has a receipt.
ROW = """
SELECT s.id, s.title, s.harness, s.provider, s.model, s.reasoning, s.permissions,
       s.durability, s.egress, s.egress_hosts, s.archived, s.created_at, s.updated_at, s.last_seq,
       s.made_by,
       t.id AS running_turn,
       s.budget_tokens, s.budget_cost, s.used_requests, s.used_input, s.used_output,
       s.used_cached, s.used_cost, s.used_unpriced, s.used_estimated,
       e.durable, w.waiting,
       (SELECT count(*) FROM turns q WHERE q.session_id = s.id AND q.state = 'queued') AS queued,
       (r.receipt ->> 'files')::bigint AS files, (r.receipt ->> 'bytes')::bigint AS bytes,
       l.id AS last_id, l.state AS last_state, l.harness AS last_harness,
       l.provider AS last_provider, l.ended_at AS last_ended_at, l.error AS last_error,
       l.durable AS last_durable, c.state
FROM sessions s
LEFT JOIN turns t ON t.session_id = s.id AND t.state = 'running'
LEFT JOIN LATERAL (
    SELECT n.id, n.state, n.harness, n.provider, n.ended_at, n.error,
           CASE WHEN n.ended_at IS NOT NULL THEN n.receipt IS NOT NULL END AS durable
    FROM turns n WHERE n.session_id = s.id AND n.epoch IS NOT NULL
    ORDER BY n.epoch DESC LIMIT 1
) l ON true
LEFT JOIN LATERAL (
    SELECT n.receipt IS NOT NULL AS durable FROM turns n
    WHERE n.session_id = s.id AND n.epoch IS NOT NULL AND n.ended_at IS NOT NULL
    ORDER BY n.epoch DESC LIMIT 1
) e ON true
LEFT JOIN LATERAL (
    SELECT n.receipt FROM turns n
    WHERE n.session_id = s.id AND n.epoch IS NOT NULL AND n.ended_at IS NOT NULL
      AND n.receipt IS NOT NULL
    ORDER BY n.epoch DESC LIMIT 1
) r ON true
CROSS JOIN LATERAL (
    -- `auto` answers at once, and nobody is waited for
    SELECT count(*) AS waiting FROM permissions p
    WHERE p.turn_id = t.id AND p.state = 'pending' AND t.permissions = 'ask'
) w
CROSS JOIN LATERAL (
    SELECT CASE WHEN w.waiting > 0 THEN 'waiting'
                WHEN t.id IS NOT NULL THEN 'running'
                WHEN NOT e.durable THEN 'not_durable'
                ELSE 'idle' END AS state
) c
"""
GET = ROW + "WHERE s.id = $1"


async def get(conn: Connection, session_id: UUID) -> Session | None:
    row = await conn.fetchrow(GET, session_id)
    return _session(dict(row)) if row is not None else None


EXISTS = "SELECT EXISTS (SELECT FROM sessions WHERE id = $1)"


async def exists(conn: Connection, session_id: UUID) -> bool:
    return bool(await conn.fetchval(EXISTS, session_id))


# Every word that is looked for is in the title or in some event.
PAGE = (
    ROW  # noqa: S608 - two constants: what is asked for comes as $n
    + """
WHERE ($1::boolean IS NULL OR s.archived = $1)
  AND ($2::timestamptz IS NULL OR (s.updated_at, s.id) < ($2, $3::uuid))
  AND (cardinality($5::text[]) = 0 OR c.state = ANY($5))
  AND ($6::text IS NULL OR s.harness = $6)
  AND ($7::text IS NULL OR s.provider = $7)
  AND (cardinality($8::text[]) = 0 OR s.id IN (
      SELECT found.id FROM (
          SELECT v.session_id AS id, k.n
          FROM unnest($8) WITH ORDINALITY AS k (query, n)
          JOIN events v ON v.words IS NOT NULL AND v.words @@ to_tsquery('simple', k.query)
          WHERE k.query <> ''
          UNION
          SELECT h.id, k.n FROM unnest($9::text[]) WITH ORDINALITY AS k (pattern, n)
          JOIN sessions h ON h.title ILIKE k.pattern
      ) AS found
      GROUP BY found.id HAVING count(*) = cardinality($8)
  ))
ORDER BY s.updated_at DESC, s.id DESC
LIMIT $4
"""
)


@dataclass(frozen=True)
class Wanted:
    """Which sessions a list shows; None and nothing leave a question open."""

    archived: bool | None = False
    states: Sequence[SessionState] = ()
    harness: str | None = None
    provider: str | None = None
    sought: Sought = NOTHING


async def page(
    conn: Connection,
    wanted: Wanted,
    *,
    before: tuple[datetime, UUID] | None,
    limit: int,
) -> list[Session]:
    """Sessions in the order of their last activity, newest first, older than `before`."""
    at, session_id = before if before is not None else (None, None)
    rows = await conn.fetch(
        PAGE,
        wanted.archived,
        at,
        session_id,
        limit,
        wanted.states,
        wanted.harness,
        wanted.provider,
        wanted.sought.queries,
        wanted.sought.likes,
    )
    return [_session(dict(row)) for row in rows]


def _session(fields: dict[str, Any]) -> Session:
    last = {name: fields.pop(f"last_{name}") for name in LastTurn.model_fields}
    if last["error"] is not None:
        last["error"] = json.loads(last["error"])
    last_turn = LastTurn(**last) if last["id"] is not None else None
    used, budget = usage.take_totals(fields), usage.take_budget(fields)
    return Session(**fields, last_turn=last_turn, usage=used, budget=budget)


TITLES = "SELECT id, title FROM sessions WHERE id = ANY($1::uuid[])"


async def titles(conn: Connection, session_ids: Sequence[UUID]) -> dict[UUID, str]:
    """What sessions are called."""
    return {row["id"]: row["title"] for row in await conn.fetch(TITLES, session_ids)}


COUNT = """
SELECT (SELECT count(*) FROM turns WHERE session_id = $1) AS turns,
       (SELECT count(*) FROM events WHERE session_id = $1) AS events
"""


async def count(conn: Connection, session_id: UUID) -> Removed:
    """What `delete` would remove."""
    row = await conn.fetchrow(COUNT, session_id)
    assert row is not None
    return Removed(**row)


PATCH = """
UPDATE sessions
SET title = coalesce($2, title), archived = coalesce($3, archived),
    egress = coalesce($4, egress), egress_hosts = coalesce($5, egress_hosts), updated_at = now()
WHERE id = $1
"""


async def patch(conn: Connection, session_id: UUID, change: SessionPatch) -> None:
    """Change what is given; None leaves a field as it is."""
    await conn.execute(
        PATCH, session_id, change.title, change.archived, change.egress, change.egress_hosts
    )


# No join here: the lock may be waited for, and a joined row would be from before the wait.
LOCK = "SELECT epoch, last_seq, deleting FROM sessions WHERE id = $1 FOR NO KEY UPDATE"
LOCK_NOW = LOCK + " SKIP LOCKED"
UNENDED = """
SELECT (SELECT id FROM turns WHERE session_id = $1 AND state = 'running') AS running_turn,
       (SELECT id FROM turns WHERE session_id = $1 AND state = 'queued'
        ORDER BY position LIMIT 1) AS next_queued,
       EXISTS (SELECT FROM holds WHERE session_id = $1 AND expires_at > now()) AS held
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


IS_DELETING = "SELECT deleting FROM sessions WHERE id = $1"


async def is_deleting(conn: Connection, session_id: UUID) -> bool | None:
    """None when there is no such session."""
    found: bool | None = await conn.fetchval(IS_DELETING, session_id)
    return found


MARK_DELETING = "UPDATE sessions SET deleting = true WHERE id = $1"


async def mark_deleting(conn: Connection, session_id: UUID) -> None:
    """From here on the session takes no turn and no change of its files any more."""
    await conn.execute(MARK_DELETING, session_id)


DELETE_EVENTS = "DELETE FROM events WHERE session_id = $1"
DELETE_PERMISSIONS = "DELETE FROM permissions WHERE session_id = $1"
DELETE_SANDBOXES = "DELETE FROM sandboxes WHERE session_id = $1"
DELETE_LEASES = """
DELETE FROM leases USING turns WHERE turns.id = leases.turn_id AND turns.session_id = $1
"""
DELETE_TURNS = "DELETE FROM turns WHERE session_id = $1"
DELETE = "DELETE FROM sessions WHERE id = $1"


async def delete(conn: Connection, session_id: UUID) -> Removed:
    """Remove every row of the session."""
    events = _count(await conn.execute(DELETE_EVENTS, session_id))
    await conn.execute(DELETE_PERMISSIONS, session_id)
    await conn.execute(DELETE_SANDBOXES, session_id)
    await conn.execute(DELETE_LEASES, session_id)
    turns = _count(await conn.execute(DELETE_TURNS, session_id))
    await conn.execute(DELETE, session_id)
    return Removed(turns, events)


def _count(status: str) -> int:
    """The number in PostgreSQL's `DELETE 12`."""
    return int(status.rsplit(" ", 1)[-1])
