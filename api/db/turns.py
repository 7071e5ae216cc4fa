"""Turns: rows in, contract bodies out."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from uuid import UUID

from api.db import usage
from contracts.bodies import (
    Budget,
    Durability,
    NotDurableBody,
    Permissions,
    ReceiptBody,
    Spent,
    Turn,
    TurnState,
)
from contracts.egress import Egress
from contracts.events import dumps

if TYPE_CHECKING:
    from api.db.pool import Connection


@dataclass(frozen=True)
class NewTurn:
    id: UUID
    session_id: UUID
    prompt: str
    harness: str
    provider: str
    model: str | None
    reasoning: str | None
    permissions: Permissions
    durability: Durability = "mount"


@dataclass(frozen=True)
class RunningTurn:
    """What it takes to run a turn, or to go on with it after a restart.

    `epoch` is the one that the turn started with, `lease_epoch` the one of its last grant. `spent`
    is what the session has used so far, of what its budget counts.
    """

    id: UUID
    session_id: UUID
    epoch: int
    lease_epoch: int
    prompt: str
    harness: str
    provider: str
    model: str | None
    reasoning: str | None
    permissions: Permissions
    durability: Durability
    egress: Egress
    egress_hosts: list[str]
    accepted: bool
    cancel_requested: bool
    last_source: int
    budget: Budget | None
    spent: Spent


# `first_seq` is only the earliest that it can have, until the turn starts.
INSERT = """
INSERT INTO turns (id, session_id, position, state, prompt, harness, provider, model, reasoning,
                   permissions, durability, first_seq, last_seq)
SELECT $1, $2, coalesce(max(q.position), 0) + 1, 'queued', $3, $4, $5, $6, $7, $8, $9,
       $10::bigint, $10 - 1
FROM turns q WHERE q.session_id = $2 AND q.state = 'queued'
"""


async def insert(conn: Connection, new: NewTurn, first_seq: int) -> None:
    """Store a turn behind those that wait. The caller holds the session."""
    await conn.execute(
        INSERT,
        new.id,
        new.session_id,
        dumps(new.prompt),
        new.harness,
        new.provider,
        new.model,
        new.reasoning,
        new.permissions,
        new.durability,
        first_seq,
    )


# What it may reach is the session's choice of that moment, and holds to the turn's end.
START = """
UPDATE turns SET state = 'running', epoch = $2, first_seq = $3, last_seq = $3,
                 egress = s.egress, egress_hosts = s.egress_hosts
FROM sessions s WHERE turns.id = $1 AND turns.state = 'queued' AND s.id = turns.session_id
"""


async def start(conn: Connection, turn_id: UUID, epoch: int, first_seq: int) -> None:
    """Let a turn run that has waited until now."""
    await conn.execute(START, turn_id, epoch, first_seq)


STARTABLE = """
SELECT DISTINCT q.session_id FROM turns q JOIN sessions s ON s.id = q.session_id
WHERE q.state = 'queued' AND NOT s.deleting
  AND NOT EXISTS (SELECT FROM turns r WHERE r.session_id = q.session_id AND r.state = 'running')
  AND NOT EXISTS (SELECT FROM holds h WHERE h.session_id = q.session_id AND h.expires_at > now())
"""


async def startable(conn: Connection) -> list[UUID]:
    """Sessions in which a turn waits, none runs, and one may start."""
    return [row["session_id"] for row in await conn.fetch(STARTABLE)]


BY_STATE = "SELECT state, count(*) FROM turns GROUP BY state"


async def count_by_state(conn: Connection) -> dict[str, int]:
    """How many turns there are; of a state that has none, nothing."""
    return {row["state"]: row["count"] for row in await conn.fetch(BY_STATE)}


QUEUED = "SELECT count(*) FROM turns WHERE session_id = $1 AND state = 'queued'"


async def queued(conn: Connection, session_id: UUID) -> int:
    """How many turns of a session wait."""
    return int(await conn.fetchval(QUEUED, session_id))


# A receipt counts, and is shown, only with the turn's end.
GET = """
SELECT id, session_id, state, prompt, harness, provider, model, reasoning, permissions,
       durability, egress, egress_hosts, created_at, ended_at, first_seq, last_seq, error,
       used_requests, used_input, used_output, used_cached, used_cost, used_unpriced,
       used_estimated,
       CASE WHEN ended_at IS NOT NULL THEN receipt END AS receipt,
       CASE WHEN ended_at IS NOT NULL THEN not_durable END AS not_durable
FROM turns WHERE session_id = $1 AND id = $2
"""


async def get(conn: Connection, session_id: UUID, turn_id: UUID) -> Turn | None:
    row = await conn.fetchrow(GET, session_id, turn_id)
    return _turn(dict(row)) if row is not None else None


# What was cancelled while it waited is no part of the conversation.
PAGE = """
SELECT epoch, position, id, session_id, state, prompt, harness, provider, model, reasoning,
       permissions, durability, egress, egress_hosts, created_at, ended_at, first_seq, last_seq,
       error, used_requests, used_input, used_output, used_cached, used_cost, used_unpriced,
       used_estimated,
       CASE WHEN ended_at IS NOT NULL THEN receipt END AS receipt,
       CASE WHEN ended_at IS NOT NULL THEN not_durable END AS not_durable
FROM turns
WHERE session_id = $1 AND (epoch > $2 OR state = 'queued' AND position > $3)
ORDER BY epoch NULLS LAST, position
LIMIT $4
"""


@dataclass(frozen=True)
class InOrder:
    """Where a turn stands: those that ran by their epoch, then those that wait."""

    epoch: int = 0
    position: int = 0


async def page(
    conn: Connection, session_id: UUID, *, after: InOrder, limit: int
) -> list[tuple[InOrder, Turn]]:
    """Turns in the order of the conversation, each with its place."""
    rows = await conn.fetch(PAGE, session_id, after.epoch, after.position, limit)
    found = []
    for row in rows:
        fields = dict(row)
        epoch, position = fields.pop("epoch"), fields.pop("position")
        place = InOrder(epoch) if epoch is not None else InOrder(after.epoch, position)
        after = place
        found.append((place, _turn(fields)))
    return found


RUNNING_ONE = """
SELECT t.id, t.session_id, t.epoch, s.epoch AS lease_epoch, t.prompt, t.harness, t.provider,
       t.model, t.reasoning, t.permissions, t.durability, t.egress, t.egress_hosts, t.accepted,
       t.cancel_requested, t.last_source, s.budget_tokens, s.budget_cost, s.used_requests,
       s.used_input, s.used_output, s.used_cached, s.used_cost, s.used_unpriced, s.used_estimated
FROM turns t JOIN sessions s ON s.id = t.session_id
WHERE t.state = 'running' AND t.id = $1
"""


async def running_one(conn: Connection, turn_id: UUID) -> RunningTurn | None:
    """The turn as it stands, or None once it has ended or is deleted."""
    row = await conn.fetchrow(RUNNING_ONE, turn_id)
    if row is None:
        return None
    fields = {**row, "prompt": json.loads(row["prompt"])}
    budget, spent = usage.take_budget(fields), usage.spent(usage.take_totals(fields))
    return RunningTurn(**fields, budget=budget, spent=spent)


RUNNING_AMONG = "SELECT id FROM turns WHERE state = 'running' AND id = ANY($1::uuid[])"


async def running_among(conn: Connection, turn_ids: Collection[UUID]) -> set[UUID]:
    """Those of the turns that run."""
    return {row["id"] for row in await conn.fetch(RUNNING_AMONG, list(turn_ids))}


UNENDED = "SELECT true FROM turns WHERE id = $1 AND ended_at IS NULL"


async def has_ended(conn: Connection, turn_id: UUID) -> bool:
    """Whether a turn neither runs nor waits."""
    return await conn.fetchval(UNENDED, turn_id) is None


PROVEN_BEFORE = """
SELECT b.id FROM turns t JOIN turns b ON b.session_id = t.session_id AND b.epoch < t.epoch
WHERE t.session_id = $1 AND t.id = $2 AND b.ended_at IS NOT NULL AND b.receipt IS NOT NULL
ORDER BY b.epoch DESC LIMIT 1
"""


async def proven_before(conn: Connection, session_id: UUID, turn_id: UUID) -> UUID | None:
    """The last turn before this one that has a receipt."""
    found: UUID | None = await conn.fetchval(PROVEN_BEFORE, session_id, turn_id)
    return found


ACCEPTED = "UPDATE turns SET accepted = true WHERE id = $1"


async def mark_accepted(conn: Connection, turn_id: UUID) -> None:
    """Note that the sidecar took the run. The caller holds the turn by `transcript.lock`."""
    await conn.execute(ACCEPTED, turn_id)


REQUEST_CANCEL = """
UPDATE turns SET cancel_requested = true
WHERE session_id = $1 AND id = $2 AND state = 'running'
RETURNING id
"""


async def request_cancel(conn: Connection, session_id: UUID, turn_id: UUID) -> bool:
    """Note the wish to cancel; false when the turn is not running."""
    return await conn.fetchval(REQUEST_CANCEL, session_id, turn_id) is not None


CANCEL_REQUESTED = "SELECT cancel_requested FROM turns WHERE id = $1"


async def cancel_requested(conn: Connection, turn_id: UUID) -> bool:
    """Whether the end of a turn was asked for, through whichever process."""
    return bool(await conn.fetchval(CANCEL_REQUESTED, turn_id))


DROP_QUEUED = """
UPDATE turns SET state = 'cancelled', ended_at = now()
WHERE session_id = $1 AND state = 'queued' AND ($2::uuid IS NULL OR id = $2)
RETURNING id
"""


async def drop_queued(conn: Connection, session_id: UUID, turn_id: UUID | None = None) -> int:
    """End a turn that waits, or all that wait in a session; says how many."""
    return len(await conn.fetch(DROP_QUEUED, session_id, turn_id))


SET_RECEIPT = "UPDATE turns SET receipt = $2, not_durable = NULL WHERE id = $1"


async def set_receipt(conn: Connection, turn_id: UUID, receipt: ReceiptBody) -> None:
    """Keep the proof that came with the turn's end."""
    await conn.execute(SET_RECEIPT, turn_id, dumps(receipt.model_dump()))


SET_NOT_DURABLE = "UPDATE turns SET receipt = NULL, not_durable = $2 WHERE id = $1"


async def set_not_durable(conn: Connection, turn_id: UUID, why: NotDurableBody) -> None:
    """Keep what could not be proven; the last word of a run counts."""
    await conn.execute(SET_NOT_DURABLE, turn_id, dumps(why.model_dump()))


FINISH = """
UPDATE turns SET state = $2, ended_at = now(), error = $3 WHERE id = $1 AND state = 'running'
"""


async def finish(
    conn: Connection, turn_id: UUID, state: TurnState, error: Mapping[str, Any] | None
) -> None:
    """End the turn."""
    encoded = dumps(dict(error)) if error is not None else None
    await conn.execute(FINISH, turn_id, state, encoded)


def _turn(row: Mapping[str, Any]) -> Turn:
    decoded = {
        key: json.loads(row[key]) if row[key] is not None else None
        for key in ("prompt", "error", "receipt", "not_durable")
    }
    fields = {**row, **decoded}
    used = usage.take_totals(fields)
    return Turn(**fields, usage=used)
