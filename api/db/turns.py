"""Turns: rows in, contract bodies out."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from uuid import UUID

from contracts.bodies import Permissions, ReceiptBody, Turn, TurnState
from contracts.events import dumps

if TYPE_CHECKING:
    from api.db.pool import Connection


@dataclass(frozen=True)
class NewTurn:
    id: UUID
    session_id: UUID
    epoch: int
    prompt: str
    harness: str
    provider: str
    model: str | None
    reasoning: str | None
    permissions: Permissions
    first_seq: int


@dataclass(frozen=True)
class RunningTurn:
    """What it takes to run a turn, or to go on with it after a restart."""

    id: UUID
    session_id: UUID
    epoch: int
    prompt: str
    harness: str
    provider: str
    model: str | None
    reasoning: str | None
    permissions: Permissions
    accepted: bool
    cancel_requested: bool
    last_source: int


INSERT = """
INSERT INTO turns (id, session_id, epoch, state, prompt, harness, provider, model, reasoning,
                   permissions, first_seq, last_seq)
VALUES ($1, $2, $3, 'running', $4, $5, $6, $7, $8, $9, $10, $10)
"""


async def insert(conn: Connection, new: NewTurn) -> None:
    """Store a turn that starts now."""
    await conn.execute(
        INSERT,
        new.id,
        new.session_id,
        new.epoch,
        dumps(new.prompt),
        new.harness,
        new.provider,
        new.model,
        new.reasoning,
        new.permissions,
        new.first_seq,
    )


# The receipt arrives just before the turn's end; it counts, and is shown, only with it.
GET = """
SELECT id, session_id, state, prompt, harness, provider, model, reasoning, permissions,
       created_at, ended_at, first_seq, last_seq, error,
       CASE WHEN state <> 'running' THEN receipt END AS receipt
FROM turns WHERE session_id = $1 AND id = $2
"""


async def get(conn: Connection, session_id: UUID, turn_id: UUID) -> Turn | None:
    row = await conn.fetchrow(GET, session_id, turn_id)
    return _turn(dict(row)) if row is not None else None


PAGE = """
SELECT epoch, id, session_id, state, prompt, harness, provider, model, reasoning, permissions,
       created_at, ended_at, first_seq, last_seq, error,
       CASE WHEN state <> 'running' THEN receipt END AS receipt
FROM turns WHERE session_id = $1 AND epoch > $2 ORDER BY epoch LIMIT $3
"""


async def page(
    conn: Connection, session_id: UUID, *, after_epoch: int, limit: int
) -> list[tuple[int, Turn]]:
    """Turns in the order of the conversation, each with its epoch."""
    rows = await conn.fetch(PAGE, session_id, after_epoch, limit)
    return [(row["epoch"], _turn({k: v for k, v in row.items() if k != "epoch"})) for row in rows]


RUNNING = """
SELECT id, session_id, epoch, prompt, harness, provider, model, reasoning, permissions,
       accepted, cancel_requested, last_source
FROM turns WHERE state = 'running' ORDER BY created_at
"""


async def running(conn: Connection) -> list[RunningTurn]:
    """Every turn that has not ended."""
    return [_running(dict(row)) for row in await conn.fetch(RUNNING)]


RUNNING_ONE = """
SELECT id, session_id, epoch, prompt, harness, provider, model, reasoning, permissions,
       accepted, cancel_requested, last_source
FROM turns WHERE state = 'running' AND id = $1
"""


async def running_one(conn: Connection, turn_id: UUID) -> RunningTurn | None:
    """The turn as it stands, or None once it has ended or is deleted."""
    row = await conn.fetchrow(RUNNING_ONE, turn_id)
    return _running(dict(row)) if row is not None else None


ACCEPTED = "UPDATE turns SET accepted = true WHERE id = $1"


async def mark_accepted(conn: Connection, turn_id: UUID) -> None:
    """Note that the sidecar took the run."""
    await conn.execute(ACCEPTED, turn_id)


REQUEST_CANCEL = """
UPDATE turns SET cancel_requested = true
WHERE session_id = $1 AND id = $2 AND state = 'running'
RETURNING id
"""


async def request_cancel(conn: Connection, session_id: UUID, turn_id: UUID) -> bool:
    """Note the wish to cancel; false when the turn is not running."""
    return await conn.fetchval(REQUEST_CANCEL, session_id, turn_id) is not None


SET_RECEIPT = "UPDATE turns SET receipt = $2 WHERE id = $1"


async def set_receipt(conn: Connection, turn_id: UUID, receipt: ReceiptBody) -> None:
    """Keep the proof that came with the turn's events."""
    await conn.execute(SET_RECEIPT, turn_id, dumps(receipt.model_dump()))


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
        for key in ("prompt", "error", "receipt")
    }
    return Turn(**{**row, **decoded})


def _running(row: Mapping[str, Any]) -> RunningTurn:
    return RunningTurn(**{**row, "prompt": json.loads(row["prompt"])})
