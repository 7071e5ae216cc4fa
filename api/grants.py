"""The right to run a turn: given at its start, given anew when its process is gone."""

from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import UUID

from api.db import leases, sandboxes, sessions, transcript, turns
from api.db.leases import Holder
from api.db.pool import Database
from api.db.sessions import Locked
from api.db.turns import RunningTurn
from contracts.events import Message, TurnStarted

if TYPE_CHECKING:
    from api.db.pool import Connection

TITLE_CHARS = 80
# How many events a turn begins with: that it began, and what it was asked.
OPENING = 2
# What a turn runs with, as its first event tells it.
HOW = ("harness", "provider", "model", "reasoning", "permissions", "egress")


async def begin(
    conn: Connection, session_id: UUID, turn_id: UUID, locked: Locked, holder: Holder
) -> RunningTurn:
    """Let a queued turn run: its epoch, its lease, the intent to have a box, its first events."""
    epoch = locked.epoch + 1
    await turns.start(conn, turn_id, epoch, locked.last_seq + 1)
    turn = await turns.get(conn, session_id, turn_id)
    assert turn is not None
    await sessions.start_turn(conn, session_id, epoch, title_of(turn.prompt))
    await leases.grant(conn, turn_id, holder)
    await sandboxes.intend(conn, session_id, turn_id, turn.provider, epoch)
    place = await transcript.lock(conn, turn_id, epoch)
    assert place is not None
    how = {name: getattr(turn, name) for name in HOW}
    opening = (TurnStarted(**how), Message(role="user", text=turn.prompt))
    await transcript.append(conn, turn_id, place, [transcript.prepare(event) for event in opening])
    running = await turns.running_one(conn, turn_id)
    assert running is not None
    return running


async def begin_next(database: Database, session_id: UUID, holder: Holder) -> RunningTurn | None:
    """Start the first turn that waits; None when none may, or another process is at it.

    Raises: DatabaseUnavailable.
    """
    async with database.transaction() as conn:
        locked = await sessions.lock(conn, session_id, wait=False)
        if locked is None or locked.deleting or locked.running_turn is not None:
            return None
        if locked.next_queued is None or locked.held:
            return None
        turn = await begin(conn, session_id, locked.next_queued, locked, holder)
    database.metrics.began(OPENING)
    return turn


async def take_over(
    database: Database, session_id: UUID, turn_id: UUID, holder: Holder
) -> RunningTurn | None:
    """Carry on with a turn whose lease is free; None when another process was faster.

    Raises: DatabaseUnavailable.
    """
    async with database.transaction() as conn:
        # not waited for: who holds the row is alive, or PostgreSQL hangs up on it soon
        locked = await sessions.lock(conn, session_id, wait=False)
        if locked is None or not await leases.is_free(conn, turn_id):
            return None
        return await _regrant(conn, session_id, turn_id, holder)


async def seize(
    database: Database, session_id: UUID, turn_id: UUID, holder: Holder
) -> RunningTurn | None:
    """Take a running turn from whoever carries it; None when it has ended.

    Raises: DatabaseUnavailable.
    """
    async with database.transaction() as conn:
        if await sessions.lock(conn, session_id) is None:
            return None
        return await _regrant(conn, session_id, turn_id, holder)


async def _regrant(
    conn: Connection, session_id: UUID, turn_id: UUID, holder: Holder
) -> RunningTurn | None:
    if await turns.running_one(conn, turn_id) is None:
        return None
    await sessions.raise_epoch(conn, session_id)
    await leases.grant(conn, turn_id, holder)
    return await turns.running_one(conn, turn_id)


def title_of(prompt: str) -> str:
    """A session that was given no title is called by its first prompt."""
    words = " ".join("".join(c if c.isprintable() else " " for c in prompt[:1000]).split())
    return words if len(words) <= TITLE_CHARS else words[: TITLE_CHARS - 1] + "…"
