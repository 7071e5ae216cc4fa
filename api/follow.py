"""Followers of a transcript: a cursor each, woken by NOTIFY, reading by `seq`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from uuid import UUID

from api.db import sessions, transcript
from api.db.notify import Listener
from api.db.pool import Database
from api.db.transcript import Stored
from contracts.errors import HoldfastError
from contracts.events import TURN_END_TYPES, dumps

HEARTBEAT = 15.0
# What waits for one follower that reads slowly; there may be hundreds.
HELD_BYTES = 1 << 20
# A page with less in it was not cut for its size: there is no more to read for now.
SMALL_BYTES = HELD_BYTES // 2


@dataclass(frozen=True)
class Span:
    """Which events a follower wants. `upto` None means: wait for those to come."""

    session_id: UUID
    after: int
    upto: int | None = None
    limit: int | None = None
    until_end_of: UUID | None = None


async def pages(database: Database, listener: Listener, span: Span) -> AsyncIterator[list[Stored]]:
    """The events of a span, page by page; an empty page is a heartbeat.

    Raises: DatabaseUnavailable.
    """
    after, left = span.after, span.limit
    upto = transcript.NO_END if span.upto is None else span.upto
    beat = True  # the first bytes go out at once, also when there is nothing to tell yet
    following = span.upto is None
    counted = database.metrics.followers.track_inprogress() if following else nullcontext()
    with counted, listener.subscribe(span.session_id) as changed:
        while left is None or left > 0:
            changed.clear()
            most = transcript.PAGE_EVENTS if left is None else left
            async with database.connection() as conn:
                page = await transcript.read(
                    conn, span.session_id, after, upto=upto, limit=most, most_bytes=HELD_BYTES
                )
                gone = not page and not await sessions.exists(conn, span.session_id)
            if page:
                page, ended = _until_end(page, span.until_end_of)
                after, beat = page[-1].seq, False
                left = None if left is None else left - len(page)
                # after all there was, NOTIFY tells of more: looking at once would double the looks
                more = len(page) >= min(most, transcript.PAGE_EVENTS) or _large(page)
                yield page
                if ended:
                    return
                if more:
                    continue
            if gone or span.upto is not None or listener.closing:
                return
            if beat:
                yield []
            try:
                async with asyncio.timeout(HEARTBEAT):
                    await changed.wait()
                beat = False
            except TimeoutError:
                beat = True


def _large(page: list[Stored]) -> bool:
    return sum(len(event.body) for event in page) >= SMALL_BYTES


def _until_end(page: list[Stored], turn_id: UUID | None) -> tuple[list[Stored], bool]:
    for index, event in enumerate(page):
        if event.turn_id == turn_id and event.type in TURN_END_TYPES:
            return page[: index + 1], True
    return page, False


def ndjson(page: Sequence[Stored]) -> bytes:
    """One event a line, as it is stored; a blank line is a heartbeat."""
    return b"".join(event.body + b"\n" for event in page) or b"\n"


def sse(page: Sequence[Stored]) -> bytes:
    """Server-sent events whose ids are the events' `seq`; a comment is a heartbeat."""
    lines = (b"id: %d\ndata: %b\n\n" % (event.seq, event.body) for event in page)
    return b"".join(lines) or b":\n\n"


async def ndjson_stream(database: Database, listener: Listener, span: Span) -> AsyncIterator[bytes]:
    """A span as NDJSON; what stops it on the way is its last line, as `{"error": …}`."""
    try:
        async for page in pages(database, listener, span):
            yield ndjson(page)
    except HoldfastError as error:
        yield dumps({"error": error.body()}) + b"\n"


async def sse_stream(database: Database, listener: Listener, span: Span) -> AsyncIterator[bytes]:
    """A span as server-sent events; when something stops it, the browser comes back by itself."""
    async for page in pages(database, listener, span):
        yield sse(page)
