"""The transcript: append with a dense `seq`, read by `seq`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING
from uuid import UUID

from api.db import search
from api.db.search import Tail
from contracts.errors import StaleEpoch
from contracts.events import EventBase, dumps, to_dict

if TYPE_CHECKING:
    from api.db.pool import Connection

PAGE_EVENTS = 500
# A single event may be megabytes; a page of them must not be gigabytes.
PAGE_BYTES = 8 * 1024 * 1024


@dataclass(frozen=True)
class NewEvent:
    """An event that has no place in the transcript yet. `tail` is its JSON without the brace,
    `text` is what it can be found by."""

    event: EventBase
    source: int | None
    at: datetime
    type: str
    tail: bytes
    text: str = ""


@dataclass(frozen=True)
class Place:
    """Where a turn stands. `tail` is how its text ended (`search.Tail`)."""

    session_id: UUID
    epoch: int
    last_seq: int
    last_source: int
    state: str
    tail: str


@dataclass(frozen=True)
class Stored:
    seq: int
    turn_id: UUID
    type: str
    body: bytes


def prepare(event: EventBase, source: int | None = None) -> NewEvent:
    """Encode an event outside of any transaction; its place is put in front when it is stored."""
    plain = to_dict(event)
    for key in ("seq", "session_id", "turn_id"):
        plain.pop(key, None)
    try:
        at = event.at.astimezone(UTC)
    except (OverflowError, ValueError):
        at = datetime.now(UTC)
    text = search.text_of(event)
    return NewEvent(event, source, at, str(plain["type"]), dumps(plain)[1:], text)


def placed(event: NewEvent, session_id: UUID, turn_id: UUID, seq: int) -> bytes:
    """The complete line: what is stored and what followers get, byte for byte."""
    head = f'{{"seq":{seq},"session_id":"{session_id}","turn_id":"{turn_id}",'
    return head.encode("ascii") + event.tail


LOCK = """
SELECT s.id AS session_id, s.epoch, s.last_seq, t.last_source, t.state, t.tail
FROM sessions s JOIN turns t ON t.session_id = s.id
WHERE t.id = $1
FOR NO KEY UPDATE
"""


async def lock(conn: Connection, turn_id: UUID, epoch: int) -> Place | None:
    """Take the right to append to the turn's session until the transaction ends.

    The epoch is on the row that is locked: read after the wait, and kept until the commit.
    Raises: StaleEpoch when the turn runs and somebody else holds its lease.
    """
    row = await conn.fetchrow(LOCK, turn_id)
    if row is None:
        return None
    place = Place(**row)
    if place.state == "running" and place.epoch != epoch:
        raise StaleEpoch(
            f"The session's lease has epoch {place.epoch} by now, this write has {epoch}.",
            hint="Another api process carries the turn.",
        )
    return place


HAS_EVENT = """
SELECT EXISTS (
    SELECT 1 FROM events e JOIN turns t ON t.session_id = e.session_id
    WHERE t.id = $1 AND e.seq BETWEEN t.first_seq AND t.last_seq AND e.type = $2
)
"""


async def has_event(conn: Connection, turn_id: UUID, event_type: str) -> bool:
    """Whether the turn has such an event."""
    return bool(await conn.fetchval(HAS_EVENT, turn_id, event_type))


INSERT = """
INSERT INTO events (session_id, turn_id, seq, source, at, type, size, body, words)
SELECT $1, $2, u.seq, u.source, u.at, u.type, u.size, u.body,
       CASE WHEN u.text <> '' THEN to_tsvector('simple', u.text) END
FROM unnest($3::bigint[], $4::bigint[], $5::timestamptz[], $6::text[], $7::integer[], $8::json[],
            $9::text[])
     AS u (seq, source, at, type, size, body, text)
"""
ADVANCE = """
WITH turn AS (
    UPDATE turns SET last_seq = $3, last_source = greatest(last_source, $4), tail = $5
    WHERE id = $2
)
UPDATE sessions SET last_seq = $3 WHERE id = $1
RETURNING pg_notify('holdfast_events', id::text)
"""


async def append(
    conn: Connection, turn_id: UUID, place: Place, events: Sequence[NewEvent]
) -> list[NewEvent]:
    """Store a batch behind the transcript's last event; returns what was new.

    `place` comes from `lock` in the same transaction. Lines of the run that are stored
    already are left out, so a batch may be repeated.
    """
    fresh = []
    last_source = place.last_source
    for event in events:
        if event.source is not None:
            if event.source <= last_source:
                continue
            last_source = event.source
        fresh.append(event)
    if not fresh:
        return fresh
    seqs = list(range(place.last_seq + 1, place.last_seq + 1 + len(fresh)))
    bodies = [
        placed(event, place.session_id, turn_id, seq)
        for event, seq in zip(fresh, seqs, strict=True)
    ]
    texts, tail = _joined(fresh, Tail.parse(place.tail))
    await conn.execute(
        INSERT,
        place.session_id,
        turn_id,
        seqs,
        [event.source for event in fresh],
        [event.at for event in fresh],
        [event.type for event in fresh],
        [len(body) for body in bodies],
        bodies,
        [search.words(text) for text in texts],
    )
    await conn.execute(ADVANCE, place.session_id, turn_id, seqs[-1], last_source, str(tail))
    return fresh


def _joined(events: Sequence[NewEvent], tail: Tail) -> tuple[list[str], Tail]:
    """The events' texts, each with the beginning of a word that the piece before it cut off."""
    texts = []
    for event in events:
        text, tail = tail.join(event.event, event.text)
        texts.append(text)
    return texts, tail


READ = """
SELECT seq, turn_id, type, body FROM (
    SELECT seq, turn_id, type, body, sum(size) OVER (ORDER BY seq) - size AS bytes_before
    FROM (
        SELECT seq, turn_id, type, size, body FROM events
        WHERE session_id = $1 AND seq > $2 AND seq <= $3
        ORDER BY seq LIMIT $4
    ) AS candidates
) AS page
WHERE bytes_before < $5
ORDER BY seq
"""
NO_END = 2**62


async def read(
    conn: Connection,
    session_id: UUID,
    after: int,
    *,
    upto: int = NO_END,
    limit: int = PAGE_EVENTS,
    most_bytes: int | None = None,
) -> list[Stored]:
    """The next page; at least one event when there is one, however big it is."""
    most = PAGE_BYTES if most_bytes is None else most_bytes
    rows = await conn.fetch(READ, session_id, after, upto, min(limit, PAGE_EVENTS), most)
    return [Stored(**row) for row in rows]


READ_BEFORE = """
SELECT seq, turn_id, type, body FROM (
    SELECT seq, turn_id, type, body, sum(size) OVER (ORDER BY seq DESC) - size AS bytes_after
    FROM (
        SELECT seq, turn_id, type, size, body FROM events
        WHERE session_id = $1 AND seq < $2
        ORDER BY seq DESC LIMIT $3
    ) AS candidates
) AS page
WHERE bytes_after < $4
ORDER BY seq
"""


async def read_before(conn: Connection, session_id: UUID, before: int, limit: int) -> list[Stored]:
    """The page that ends before `before`, in order; at least one event when there is one."""
    rows = await conn.fetch(READ_BEFORE, session_id, before, min(limit, PAGE_EVENTS), PAGE_BYTES)
    return [Stored(**row) for row in rows]
