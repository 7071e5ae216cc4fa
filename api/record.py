"""One transaction for a batch of a turn's events and for all that follows from them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast
from uuid import UUID

from api.db import sandboxes, sessions, transcript, turns
from api.db.pool import Database
from api.lines import Numbered
from contracts.bodies import ReceiptBody, TurnState
from contracts.errors import HoldfastError
from contracts.events import (
    TURN_END_TYPES,
    ErrorInfo,
    Event,
    EventBase,
    Receipt,
    TurnFailed,
    TurnInterrupted,
)

if TYPE_CHECKING:
    from api.db.pool import Connection


def error_info(error: HoldfastError) -> ErrorInfo:
    """An error as it stands in an event."""
    return ErrorInfo(**error.body())


async def record(database: Database, turn_id: UUID, lines: Sequence[Numbered]) -> bool:
    """Store what is new; true when the turn has ended, with these lines or before them.

    Raises: DatabaseUnavailable; then nothing or all of it is stored, and it may be repeated.
    """
    prepared = []
    for line in lines:
        prepared.append(transcript.prepare(line.event, line.n))
        if line.event.type in TURN_END_TYPES:
            break  # a turn ends once; nothing may follow
    async with database.transaction() as conn:
        place = await transcript.lock(conn, turn_id)
        if place is None or place.state != "running":
            return True
        stored = await transcript.append(conn, turn_id, place, prepared)
        ended = False
        for new in stored:
            ended |= await _apply(conn, place.session_id, turn_id, new.event)
        return ended


async def record_end(database: Database, turn_id: UUID, event: Event) -> None:
    """End a turn with an event of the api's own; nothing happens when it has ended already.

    Raises: DatabaseUnavailable.
    """
    await record(database, turn_id, [Numbered(None, event)])


async def _apply(conn: Connection, session_id: UUID, turn_id: UUID, event: EventBase) -> bool:
    """Bring the other tables in line with an event; true when it ends the turn."""
    await sandboxes.apply(conn, session_id, turn_id, event)
    if isinstance(event, Receipt):
        fields = ReceiptBody.model_fields.keys()
        await turns.set_receipt(
            conn, turn_id, ReceiptBody(**{name: getattr(event, name) for name in fields})
        )
    kind = str(getattr(event, "type", ""))
    if kind not in TURN_END_TYPES:
        return False
    error: dict[str, Any] | None = None
    if isinstance(event, TurnFailed | TurnInterrupted):
        error = event.error.model_dump()
    await turns.finish(conn, turn_id, cast(TurnState, kind.removeprefix("turn.")), error)
    await sessions.touch(conn, session_id)
    return True
