"""One side of a connection, its bytes as HTTP by h11.

Requests and answers are taken apart and written anew, so that no framing of the one side's making
reaches the other.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable

import h11

from sidecar.gateway.egress.targets import Refused

CHUNK = 64 * 1024
# More than any honest client sends; a head that is longer is refused.
MAX_HEAD = 16 * 1024
# A client that is told no may still be sending; closed on its bytes, it would never read why.
LINGER_SECONDS = 2.0
LINGER_BYTES = 1024 * 1024

_HOP_BY_HOP = frozenset(
    {
        b"connection",
        b"expect",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"upgrade",
    }
)
Header = tuple[bytes, bytes]
Count = Callable[[int], None]


def _nothing(_: int) -> None:
    return None


class Wire:
    """`sent` and `got` are told of every byte."""

    def __init__(
        self,
        role: type[h11.CLIENT] | type[h11.SERVER],
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        sent: Count = _nothing,
        got: Count = _nothing,
    ) -> None:
        self.http = h11.Connection(role, max_incomplete_event_size=MAX_HEAD)
        self.reader = reader
        self.writer = writer
        self._sent = sent
        self._got = got

    async def next_event(self) -> object:
        """Raises: h11.RemoteProtocolError, ConnectionError."""
        while True:
            event = self.http.next_event()
            if event is not h11.NEED_DATA:
                return event
            # no more at once than a head may be long: what is beyond is then noticed
            data = await self.reader.read(MAX_HEAD)
            self._got(len(data))
            self.http.receive_data(data)

    async def send(self, event: h11.Event) -> None:
        """Waits for a slow reader. Raises: ConnectionError."""
        data = self.http.send(event)
        if data:
            self._sent(len(data))
            self.writer.write(data)
            await self.writer.drain()

    async def refuse(self, refused: Refused) -> None:
        """Answer with the reason, in the status line too: it is all that most clients show.

        Raises: ConnectionError, TimeoutError.
        """
        error = {
            "code": refused.code,
            "message": f"Egress: {refused.reason}.",
            "hint": refused.hint,
            "retryable": refused.status >= 500,
        }
        body = json.dumps({"error": error}).encode() + b"\n"
        phrase = "".join(c if c.isascii() and c.isprintable() else "?" for c in refused.reason)
        head = [
            f"HTTP/1.1 {refused.status} {phrase}",
            "Content-Type: application/json",
            f"Content-Length: {len(body)}",
            "Connection: close",
        ]
        self.writer.write("\r\n".join([*head, "", ""]).encode("ascii") + body)
        async with asyncio.timeout(LINGER_SECONDS):
            await self.writer.drain()
            if self.writer.can_write_eof():
                self.writer.write_eof()
            left = LINGER_BYTES
            while left > 0 and (data := await self.reader.read(CHUNK)):
                left -= len(data)


def end_to_end(
    headers: Iterable[Header], *, without: frozenset[bytes] = frozenset()
) -> list[Header]:
    """The headers that are for the other end, and not for whoever stands between."""
    given = list(headers)
    named = {
        name.strip().lower()
        for header, value in given
        if header == b"connection"
        for name in value.split(b",")
    }
    # named by a client or not: how long a body is, is not for it to take away
    dropped = (named - {b"content-length", b"transfer-encoding", b"host"}) | _HOP_BY_HOP | without
    return [(name, value) for name, value in given if name not in dropped]


async def close(writer: asyncio.StreamWriter) -> None:
    """With all that was written, if the other side takes it; else without."""
    writer.close()
    try:
        async with asyncio.timeout(LINGER_SECONDS):
            await writer.wait_closed()
    except (OSError, TimeoutError):
        writer.transport.abort()
