"""Permissions: a row for each question of a harness, brought in line with the run's events."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any
from uuid import UUID

from contracts.bodies import Permission, PermissionAnswer
from contracts.events import EventBase, PermissionAnswered, PermissionAsked, dumps

if TYPE_CHECKING:
    from api.db.pool import Connection

MOST_LISTED = 200

ASK = """
INSERT INTO permissions (session_id, permission_id, turn_id, seq, state)
VALUES ($1, $2, $3, $4, 'pending')
ON CONFLICT DO NOTHING
"""
# The run has the last word: what the harness got is what counts.
SETTLE = """
UPDATE permissions
SET state = 'answered', delivered = true, option_id = $3, answered_by = $4,
    answered_at = CASE WHEN answered_by = $4 THEN answered_at ELSE now() END
WHERE session_id = $1 AND permission_id = $2
"""


async def apply(
    conn: Connection, session_id: UUID, turn_id: UUID, event: EventBase, seq: int
) -> None:
    """Bring the rows in line with an event of the run; other events change nothing."""
    match event:
        case PermissionAsked():
            await conn.execute(ASK, session_id, event.permission_id, turn_id, seq)
        case PermissionAnswered():
            option = None if event.option_id is None else dumps(event.option_id)
            await conn.execute(SETTLE, session_id, event.permission_id, option, event.by)
        case _:
            pass


CLOSE = "UPDATE permissions SET state = 'closed' WHERE turn_id = $1 AND state = 'pending'"


async def close(conn: Connection, turn_id: UUID) -> None:
    """The turn has ended: what nobody has answered cannot be answered any more."""
    await conn.execute(CLOSE, turn_id)


ROW = """
SELECT p.session_id, p.permission_id, p.turn_id, p.seq, p.state, p.asked_at, p.option_id,
       p.answered_by, p.answered_at, e.body
FROM permissions p JOIN events e ON e.session_id = p.session_id AND e.seq = p.seq
"""
PAGE = (
    ROW
    + """
WHERE p.session_id = $1 AND (NOT $2 OR p.state = 'pending')
ORDER BY p.seq DESC LIMIT $3
"""
)


async def page(
    conn: Connection, session_id: UUID, *, pending: bool, lasts: timedelta
) -> list[Permission]:
    """The session's last ones, newest first; `lasts` is how long one waits for its answer."""
    rows = await conn.fetch(PAGE, session_id, pending, MOST_LISTED)
    return [_permission(dict(row), lasts) for row in rows]


HOLD = ROW + "WHERE p.session_id = $1 AND p.permission_id = $2 FOR NO KEY UPDATE OF p"


async def hold(
    conn: Connection, session_id: UUID, permission_id: str, lasts: timedelta
) -> Permission | None:
    """One of them, which nobody else can answer until the transaction ends."""
    row = await conn.fetchrow(HOLD, session_id, permission_id)
    return None if row is None else _permission(dict(row), lasts)


ANSWER = """
UPDATE permissions
SET state = 'answered', option_id = $3, answered_by = $4, answered_at = now()
WHERE session_id = $1 AND permission_id = $2
RETURNING answered_at
"""


async def answer(conn: Connection, held: Permission, option_id: str | None, by: str) -> Permission:
    """Note the answer to one that is held; it is delivered by whoever carries the turn."""
    option = None if option_id is None else dumps(option_id)
    at = await conn.fetchval(ANSWER, held.session_id, held.permission_id, option, by)
    return held.model_copy(
        update={
            "state": "answered",
            "option_id": option_id,
            "answered_by": by,
            "answered_at": at,
            "expires_at": None,
        }
    )


OVERDUE = """
SELECT permission_id FROM permissions
WHERE turn_id = $1 AND state = 'pending' AND asked_at + $2 <= now()
"""


async def overdue(conn: Connection, turn_id: UUID, lasts: timedelta) -> list[str]:
    """What was asked in a turn, and nobody answered in time."""
    return [row["permission_id"] for row in await conn.fetch(OVERDUE, turn_id, lasts)]


@dataclass(frozen=True)
class Undelivered:
    permission_id: str
    answer: PermissionAnswer


UNDELIVERED = """
SELECT permission_id, option_id, answered_by FROM permissions
WHERE turn_id = $1 AND state = 'answered' AND NOT delivered
"""


async def undelivered(conn: Connection, turn_id: UUID) -> list[Undelivered]:
    """Answers that the run has not confirmed."""
    found = []
    for row in await conn.fetch(UNDELIVERED, turn_id):
        option = None if row["option_id"] is None else json.loads(row["option_id"])
        answer = PermissionAnswer(option_id=option, by=row["answered_by"])
        found.append(Undelivered(row["permission_id"], answer))
    return found


def _permission(row: dict[str, Any], lasts: timedelta) -> Permission:
    asked = json.loads(row.pop("body"))
    option = row.pop("option_id")
    told = {name: asked.get(name) for name in ("tool_call_id", "input")}
    asked_at: datetime = row["asked_at"]
    return Permission(
        **row,
        **told,
        title=asked.get("title", ""),
        kind=asked.get("kind", "other"),
        options=asked.get("options", []),
        option_id=None if option is None else json.loads(option),
        expires_at=asked_at + lasts if row["state"] == "pending" else None,
    )
