"""Server-sent events out of an aiohttp response, as sandbox-agent sends them. It is not trusted:
an event of any length is not."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass

from aiohttp import ClientResponse

# The biggest event seen was 1.2 MB (codex); what goes far beyond is not meant well.
MOST_BYTES = 64 << 20
# Ids count from 1; a longer number would not even be read by Python's int.
MOST_DIGITS = 18


class EventTooLong(Exception):
    """One event grew past every sensible bound."""


@dataclass(frozen=True)
class ServerSentEvent:
    id: int | None
    data: str


async def events(response: ClientResponse) -> AsyncIterator[ServerSentEvent]:
    """Raises: EventTooLong, aiohttp.ClientError."""
    number: int | None = None
    data: list[str] = []
    size = 0
    async for line in _lines(response):
        size += len(line)
        if size > MOST_BYTES:
            raise EventTooLong(f"an event of more than {MOST_BYTES} bytes")
        if not line:
            if data:
                yield ServerSentEvent(number, "\n".join(data))
            number, data, size = None, [], 0
        elif line.startswith(b"id:") and line[3:].strip().isdigit():
            number = _number(line[3:].strip())
        elif line.startswith(b"data:"):
            data.append(line[5:].removeprefix(b" ").decode("utf-8", "replace"))


def _number(digits: bytes) -> int:
    """An id beyond all sense is a gap, and ends the stream as one."""
    return int(digits) if len(digits) <= MOST_DIGITS else 10**MOST_DIGITS


async def _lines(response: ClientResponse) -> AsyncIterator[bytes]:
    """Lines of any length: asyncio's own readers stop at 64 KiB."""
    pieces: list[bytes] = []
    size = 0
    async for chunk in response.content.iter_any():
        *whole, rest = chunk.split(b"\n")
        for line in whole:
            pieces.append(line)
            yield b"".join(pieces).rstrip(b"\r")
            pieces, size = [], 0
        pieces.append(rest)
        size += len(rest)
        if size > MOST_BYTES:
            raise EventTooLong(f"a line of more than {MOST_BYTES} bytes")
