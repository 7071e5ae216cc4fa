"""One transaction for a batch of a turn's events and for all that follows from them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast
from uuid import UUID

from api.db import leases, notify, permissions, sandboxes, sessions, transcript, turns, usage
from api.db.pool import Database
from api.lines import Numbered
from contracts.bodies import NotDurableBody, ReceiptBody, TurnState
from contracts.errors import HoldfastError, StreamGap
from contracts.events import (
    TURN_END_TYPES,
    ErrorInfo,
    Event,
    EventBase,
    Receipt,
    ReceiptFailed,
    RunGap,
    TurnCompleted,
    TurnFailed,
    TurnInterrupted,
)

if TYPE_CHECKING:
    from api.db.pool import Connection

GAP = str(RunGap.model_fields["type"].default)


@dataclass(frozen=True)
class Carried:
    """A turn and the epoch of the lease under which it is written to."""

    turn_id: UUID
    epoch: int


def error_info(error: HoldfastError) -> ErrorInfo:
    """An error as it stands in an event."""
    return ErrorInfo(**error.body())


async def record(database: Database, carried: Carried, lines: Sequence[Numbered]) -> bool:
    """Store what is new; true when the turn has ended, with these lines or before them.

    Raises: DatabaseUnavailable; then nothing or all of it is stored, and it may be repeated.
    StaleEpoch when another process carries the turn; then nothing is stored.
    """
    prepared = []
    for line in lines:
        prepared.append(transcript.prepare(line.event, line.n))
        if line.event.type in TURN_END_TYPES:
            break  # a turn ends once; nothing may follow
    started = time.perf_counter()
    async with database.transaction() as conn:
        place = await transcript.lock(conn, carried.turn_id, carried.epoch)
        if place is None or place.state != "running":
            return True
        if prepared and isinstance(prepared[-1].event, TurnCompleted):
            gap = await _find_gap(conn, carried.turn_id, lines)
            if gap is not None:
                prepared[-1] = transcript.prepare(gap, prepared[-1].source)
        stored = await transcript.append(conn, carried.turn_id, place, prepared)
        ended = False
        for seq, new in enumerate(stored, start=place.last_seq + 1):
            ended |= await _apply(conn, place.session_id, carried.turn_id, new.event, seq)
        used = usage.total(new.event for new in stored)
        if used.requests:
            await usage.add(conn, place.session_id, carried.turn_id, used)
    database.metrics.stored((new.event for new in stored), time.perf_counter() - started)
    return ended


async def _find_gap(
    conn: Connection, turn_id: UUID, lines: Sequence[Numbered]
) -> TurnInterrupted | None:
    """How a turn ends whose harness says that it is done, and whose transcript has a gap: nobody
    knows what is missing there."""
    told = any(isinstance(line.event, RunGap) for line in lines)
    if not told and not await transcript.has_event(conn, turn_id, GAP):
        return None
    gap = StreamGap(
        "The turn came to its end, but its journal lost lines on the way.",
        hint="What the turn did is in the workspace. Start another turn.",
    )
    return TurnInterrupted(error=error_info(gap))


async def record_end(database: Database, carried: Carried, event: Event) -> None:
    """End a turn with an event of the api's own; nothing happens when it has ended already.

    Raises: DatabaseUnavailable, StaleEpoch.
    """
    await record(database, carried, [Numbered(None, event)])


async def record_accepted(database: Database, carried: Carried) -> bool:
    """Note that the sidecar took the run; false when the turn has ended.

    Raises: DatabaseUnavailable, StaleEpoch.
    """
    async with database.transaction() as conn:
        place = await transcript.lock(conn, carried.turn_id, carried.epoch)
        if place is None or place.state != "running":
            return False
        await turns.mark_accepted(conn, carried.turn_id)
        return True


async def _apply(
    conn: Connection, session_id: UUID, turn_id: UUID, event: EventBase, seq: int
) -> bool:
    """Bring the other tables in line with an event; true when it ends the turn."""
    await sandboxes.apply(conn, session_id, turn_id, event)
    await permissions.apply(conn, session_id, turn_id, event, seq)
    if isinstance(event, Receipt):
        fields = ReceiptBody.model_fields.keys() - {"seq"}
        receipt = ReceiptBody(**{name: getattr(event, name) for name in fields}, seq=seq)
        await turns.set_receipt(conn, turn_id, receipt)
    if isinstance(event, ReceiptFailed):
        why = NotDurableBody(engine=event.engine, reason=event.reason, files=event.files)
        await turns.set_not_durable(conn, turn_id, why)
    kind = str(getattr(event, "type", ""))
    if kind not in TURN_END_TYPES:
        return False
    error: dict[str, Any] | None = None
    if isinstance(event, TurnFailed | TurnInterrupted):
        error = event.error.model_dump()
    await turns.finish(conn, turn_id, cast(TurnState, kind.removeprefix("turn.")), error)
    await leases.drop(conn, turn_id)
    await permissions.close(conn, turn_id)
    await sessions.touch(conn, session_id)
    await notify.notify_queue(conn, session_id)
    return True
