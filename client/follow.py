"""A transcript as an async iterator that outlives its connections.

`seq` is dense, so the client can prove what it yields: every event once, none
left out. A broken connection is taken up again after the last event seen.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import dataclass
from uuid import UUID

import httpx

from client.wire import Wire, segment
from contracts import errors
from contracts.events import Event, decode

# The api sends a blank line every few seconds; silence this long means a dead connection.
STREAM_TIMEOUT = httpx.Timeout(60.0, connect=5.0)
# A transcript holds events of several MB; a line this long is not an event.
MAX_LINE_BYTES = 64 << 20


@dataclass(frozen=True)
class Patience:
    """How long to try again: `tries` times in a row without news, with growing pauses.

    The default gives a stack about a minute to be restarted. A connection that was
    `steady` for that long counts as news: an idle session may be followed for days.
    """

    tries: int = 16
    first: float = 0.1
    longest: float = 5.0
    steady: float = 5.0

    def pause(self, failures: int) -> float:
        """Half of it is random: followers of one api must not come back all at once."""
        # Bounded twice: a float overflows at the thousandth doubling.
        pause = min(self.longest, self.first * 2.0 ** min(failures - 1, 32))
        return random.uniform(pause / 2, pause)  # noqa: S311 - a pause


async def lines(response: httpx.Response) -> AsyncIterator[bytes]:
    """The complete lines of a body; a torn last line is dropped, since it will be sent again.

    Raises: StreamGap for a line that has no end.
    """
    rest = bytearray()
    async for chunk in response.aiter_bytes():
        # Only the new part is searched: a 5 MB event comes in many chunks.
        start = len(rest)
        rest += chunk
        begin = 0
        while (end := rest.find(b"\n", max(start, begin))) >= 0:
            yield bytes(rest[begin:end])
            begin = end + 1
        del rest[:begin]
        if len(rest) > MAX_LINE_BYTES:
            raise errors.StreamGap(f"a line of the transcript is over {MAX_LINE_BYTES} bytes")


def placed(line: bytes) -> Event:
    """The event in a line of the api's stream.

    Raises: the error that the api sent in place of an event; Unavailable for a line
    that has no place in the transcript.
    """
    event = decode(line)
    if event.seq is not None:
        return event
    try:
        body = json.loads(line)["error"]
        error = errors.from_body(body)
    except (ValueError, KeyError, TypeError):
        error = errors.Unavailable("the api sent a line that is not an event of a transcript")
    raise error


async def follow(
    wire: Wire, session_id: UUID | str, *, after: int, live: bool, patience: Patience
) -> AsyncGenerator[Event, None]:
    """Every event after `after`, once and in order; with `live` it goes on with new ones.

    Raises: StreamGap when the api leaves one out; Unavailable when it stays away;
    SessionNotFound and the like at once.
    """
    seen, failures = after, 0
    clock = asyncio.get_running_loop().time
    while True:
        before, opened = seen, clock()
        trouble: errors.HoldfastError | None = None
        try:
            async with wire.open(
                "GET",
                f"/sessions/{segment(str(session_id))}/events",
                params={"after": seen, "follow": live},
                headers={"Accept": "application/x-ndjson"},
                limits=STREAM_TIMEOUT,
            ) as response:
                async for line in lines(response):
                    if not line.strip():
                        continue
                    event = placed(line)
                    if _is_next(event, seen):
                        seen += 1
                        yield event
        except errors.HoldfastError as error:
            if not error.retryable or isinstance(error, errors.StreamGap):
                raise
            trouble = error
        # A stored transcript is read in pages: the empty one is the end.
        page_read = trouble is None and not live
        if page_read and seen == before:
            return
        if seen > before or clock() - opened > patience.steady:
            failures = 0
        if page_read:
            continue
        failures += 1
        if failures > patience.tries:
            raise trouble or errors.Unavailable("the stream of events ends again and again")
        await asyncio.sleep(patience.pause(failures))


def _is_next(event: Event, seen: int) -> bool:
    """False for an event that was seen already.

    Raises: StreamGap when events between `seen` and this one are missing.
    """
    seq = event.seq or 0
    if seq > seen + 1:
        raise errors.StreamGap(
            f"the transcript jumps from event {seen} to {seq}",
            hint="read it again; if the gap stays, the api lost events: please report it",
            after=seen,
            got=seq,
        )
    return seq == seen + 1
