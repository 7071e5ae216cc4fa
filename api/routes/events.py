"""/sessions/{sid}/events"""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import Annotated, Any
from uuid import UUID

from fastapi import APIRouter, Header, Query
from fastapi.responses import StreamingResponse

from api.db import transcript
from api.db.transcript import PAGE_EVENTS
from api.follow import Span, ndjson, ndjson_stream, sse_stream
from api.services import Use
from api.streamed import OwnedStream
from contracts.errors import InvalidInput

router = APIRouter(prefix="/sessions/{sid}/events", tags=["transcript"])

NDJSON = "application/x-ndjson"
SSE = "text/event-stream"
MAX_SEQ = 2**62


ANSWER: dict[int | str, dict[str, Any]] = {
    200: {"description": "Events as they are stored.", "content": {NDJSON: {}, SSE: {}}}
}


@router.get("", response_class=StreamingResponse, responses=ANSWER)
async def read_events(
    sid: UUID,
    services: Use,
    after: Annotated[int, Query(ge=0, lt=MAX_SEQ)] = 0,
    before: Annotated[int | None, Query(ge=1, lt=MAX_SEQ)] = None,
    follow: bool = False,
    limit: Annotated[int | None, Query(ge=1)] = None,
    accept: Annotated[str, Header()] = "",
    last_event_id: Annotated[str | None, Header()] = None,
) -> StreamingResponse:
    """The transcript after `after`: NDJSON, or SSE when that is what is accepted.

    With `before`, one page of NDJSON instead: the events that end before it, in order.
    """
    session = await services.sessions.get(sid)
    if before is not None:
        if follow or after or last_event_id:
            raise InvalidInput("`before` goes with neither `after` nor `follow`.", hint="Choose.")
        async with services.database.connection() as conn:
            page = await transcript.read_before(conn, sid, before, limit or PAGE_EVENTS)
        return StreamingResponse(iter([ndjson(page) if page else b""]), media_type=NDJSON)
    if last_event_id:
        after = _sequence(last_event_id)
    span = Span(sid, after, upto=None if follow else session.last_seq, limit=limit)
    stream, media_type = (sse_stream, SSE) if SSE in accept.lower() else (ndjson_stream, NDJSON)
    place = AsyncExitStack()
    if follow:
        place.enter_context(services.followers.one())
    return OwnedStream(
        stream(services.database, services.listener, span), place, media_type=media_type
    )


def _sequence(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) < 19):
        raise InvalidInput(
            "Last-Event-ID is not the number of an event.", hint="Send the last `seq` you have."
        )
    return int(text)
