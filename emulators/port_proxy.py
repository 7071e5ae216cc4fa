"""One HTTP request, carried to a port inside a box, streaming both ways.

A client that hangs up closes the connection into the box at once; when the box closes, the answer
ends. Not for WebSockets.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Collection, Iterable

import h11
from starlette.types import Receive, Scope, Send

from emulators.http_server import reset_connection

CHUNK = 1 << 16
Connect = Callable[[], Awaitable[tuple[asyncio.StreamReader, asyncio.StreamWriter]]]
Header = tuple[bytes, bytes]
# What is between two neighbours, and not between client and box. `Expect` is answered on this side.
HOP_BY_HOP = frozenset(
    b"connection keep-alive proxy-authenticate proxy-authorization te trailer transfer-encoding"
    b" upgrade expect".split()
)


class NoAnswer(Exception):
    """The box closed the connection, or spoke no HTTP, before its answer began."""


async def forward(
    scope: Scope,
    receive: Receive,
    send: Send,
    connect: Connect,
    *,
    target: bytes | None = None,
    dropped: Collection[bytes] = (),
    added: Iterable[Header] = (),
) -> None:
    """Carry the request of `scope` over a connection of `connect`, and its answer back. An answer
    that breaks off in the box is broken off here too: the client's connection is reset.

    `target` is the path with its query, as it is to arrive; by default as it came. `dropped` are
    header names, in lower case, that the box is not shown, `added` are headers that it gets. `Host`
    goes through. Only under `http_server`.

    Raises: NoAnswer, and whatever `connect` raises. Nothing has been sent then, so that the caller
        can answer as its service does.
    """
    reader, writer = await connect()
    exchange = _Exchange(reader, writer, receive, send)
    try:
        await exchange.run(_request(scope, target, dropped, added))
    except _BrokenOff:
        await reset_connection(scope, receive)
    finally:
        # at once, with whatever is on its way: nobody is there to read it
        writer.transport.abort()


class _BrokenOff(Exception):
    """The answer ended before its end."""


class _Exchange:
    """One request and its answer. The request goes on while the answer comes: a box may answer
    before it has read everything, and a client may send for as long as it listens."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        receive: Receive,
        send: Send,
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._receive = receive
        self._send = send
        self._http = h11.Connection(h11.CLIENT)

    async def run(self, request: h11.Request) -> None:
        """Until the answer has ended, or the client has left. Raises: NoAnswer, _BrokenOff."""
        going = asyncio.create_task(self._go(request))
        coming = asyncio.create_task(self._come())
        try:
            done, _ = await asyncio.wait((going, coming), return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in (going, coming):
                task.cancel()
            await asyncio.wait((going, coming))

    async def _go(self, request: h11.Request) -> None:
        """The request, and then watch the client until it leaves."""
        await self._write(request)
        more = True
        while (message := await self._receive())["type"] != "http.disconnect":
            if more:
                more = message.get("more_body", False)
                await self._write(h11.Data(data=message.get("body", b"")))
                if not more:
                    await self._write(h11.EndOfMessage())

    async def _write(self, event: h11.Event) -> None:
        """A box may close before it has read everything, and yet have answered: `_come` tells."""
        data = self._http.send(event)
        with contextlib.suppress(ConnectionError):
            self._writer.write(data or b"")
            await self._writer.drain()

    async def _come(self) -> None:
        started = False
        while True:
            event = await self._next(started=started)
            if isinstance(event, h11.Response):
                started = True
                start = {"type": "http.response.start", "status": event.status_code}
                await self._send({**start, "headers": _passed_on(event.headers)})
            elif isinstance(event, h11.Data):
                await self._body(bytes(event.data), more=True)
            elif isinstance(event, h11.EndOfMessage):
                await self._body(b"", more=False)
                return

    async def _body(self, data: bytes, *, more: bool) -> None:
        await self._send({"type": "http.response.body", "body": data, "more_body": more})

    async def _next(self, *, started: bool) -> h11.Event:
        try:
            while not isinstance(event := self._http.next_event(), h11.Event):
                self._http.receive_data(await self._reader.read(CHUNK))
        except (h11.RemoteProtocolError, OSError) as error:
            if started:
                raise _BrokenOff from error
            raise NoAnswer(f"the box gives no answer: {error}") from error
        return event


def _request(
    scope: Scope, target: bytes | None, dropped: Collection[bytes], added: Iterable[Header]
) -> h11.Request:
    if target is None:
        query = scope["query_string"]
        target = scope["raw_path"] + (b"?" + query if query else b"")
    given: list[Header] = scope["headers"]
    headers = [(name, value) for name, value in _passed_on(given) if name not in dropped]
    if any(name == b"transfer-encoding" for name, _ in given):
        headers.append((b"transfer-encoding", b"chunked"))
    return h11.Request(method=scope["method"], target=target, headers=[*headers, *added])


def _passed_on(headers: Iterable[Header]) -> list[Header]:
    """Without what is meant for the next neighbour only, by its nature or by `Connection`."""
    pairs = list(headers)
    named = {
        word.strip().lower()
        for name, value in pairs
        if name == b"connection"
        for word in value.split(b",")
    }
    return [(name, value) for name, value in pairs if name not in HOP_BY_HOP | named]
