"""What a session's last turns said and did, read for the one that starts now."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING
from uuid import UUID

from contracts.bodies import TurnState

if TYPE_CHECKING:
    from api.db.pool import Connection

PAST_TURNS = 20
# Bounds for each turn: of the newest events so many are looked at, and so many bytes are read.
NEWEST_EVENTS = 500
TURN_BYTES = 64 * 1024
# A tool's whole output may be megabytes, and only its paths are wanted.
EVENT_BYTES = 16 * 1024
MESSAGE_BYTES = 1024 * 1024


@dataclass(frozen=True)
class PastRow:
    """One ended turn; `events` are the newest of its events that tell, oldest first."""

    turn_id: UUID
    epoch: int
    harness: str
    state: TurnState
    prompt_head: str  # the start of the JSON string that the prompt is
    error: bytes | None
    events: list[bytes]
    unread: bool  # there are older events that were not looked at


# No JSON operator here: they refuse \u0000 and lone surrogates, which a transcript may hold.
LAST = """
SELECT t.id AS turn_id, t.epoch, t.harness, t.state, left(t.prompt::text, $3) AS prompt_head,
       t.error, coalesce(e.bodies, '{}') AS events,
       -- a turn's first two events are its start and its prompt
       coalesce(e.oldest > t.first_seq + 1, false) AS unread,
       (SELECT count(*) FROM turns b WHERE b.session_id = $1 AND b.epoch < $2) AS turns_before
FROM (
    SELECT * FROM turns
    WHERE session_id = $1 AND epoch < $2 AND ended_at IS NOT NULL
    ORDER BY epoch DESC LIMIT $4
) AS t
LEFT JOIN LATERAL (
    SELECT array_agg(body ORDER BY seq) AS bodies, min(seq) AS oldest FROM (
        SELECT seq, body, sum(size) OVER (ORDER BY seq DESC) - size AS bytes_after
        FROM (
            SELECT seq, type, size, body FROM events
            WHERE session_id = $1 AND seq BETWEEN t.first_seq AND t.last_seq
            ORDER BY seq DESC LIMIT $5
        ) AS newest
        WHERE (type IN ('tool.call', 'tool.result', 'plan') AND size <= $6)
           OR (type = 'message' AND size <= $7)
    ) AS telling
    WHERE bytes_after < $8
) AS e ON true
ORDER BY t.epoch
"""


async def last_turns(
    conn: Connection, session_id: UUID, before_epoch: int, prompt_chars: int
) -> tuple[list[PastRow], int]:
    """The last turns that ended before an epoch, oldest first, and how many there were in all."""
    rows = await conn.fetch(
        LAST,
        session_id,
        before_epoch,
        prompt_chars,
        PAST_TURNS,
        NEWEST_EVENTS,
        EVENT_BYTES,
        MESSAGE_BYTES,
        TURN_BYTES,
    )
    told = [{key: value for key, value in row.items() if key != "turns_before"} for row in rows]
    return [PastRow(**each) for each in told], rows[0]["turns_before"] if rows else 0
