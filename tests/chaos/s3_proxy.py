"""A proxy between the services and the store's S3 that breaks requests on demand.

HTTP/1.1 with keep-alive; bodies are streamed both ways. One connection to the store for each
connection of a client, so that a client's retry on a new connection is a new one there too.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import struct
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field

CHUNK = 64 * 1024
HEAD_LIMIT = 256 * 1024
REFUSAL = (
    b"<?xml version='1.0' encoding='UTF-8'?><Error><Code>SlowDown</Code>"
    b"<Message>Please reduce your request rate.</Message></Error>"
)
NO_BODY = (204, 304)

Address = Callable[[], tuple[str, int]]


@dataclass
class S3Faults:
    """What is done to requests now. Chances are of 1; a request meets at most one of them."""

    delay: float = 0.0
    refuse: float = 0.0
    reset: float = 0.0
    chance: random.Random = field(default_factory=random.Random)

    def clear(self) -> None:
        self.delay = self.refuse = self.reset = 0.0


class Broken(Exception):
    """A side hung up, or sent what is not HTTP."""


@dataclass(frozen=True)
class Head:
    first: bytes
    headers: dict[bytes, bytes]
    raw: bytes

    @property
    def chunked(self) -> bool:
        return b"chunked" in self.headers.get(b"transfer-encoding", b"").lower()

    @property
    def length(self) -> int | None:
        text = self.headers.get(b"content-length")
        return None if text is None else int(text)

    @property
    def status(self) -> int:
        return int(self.first.split(b" ", 2)[1])

    @property
    def closes(self) -> bool:
        return self.headers.get(b"connection", b"").lower() == b"close"


@dataclass
class S3Proxy:
    """`faults` is turned by whoever runs the proxy; `passed` and `broken` count requests."""

    upstream: Address
    faults: S3Faults = field(default_factory=S3Faults)
    passed: int = 0
    broken: int = 0
    port: int = 0
    _connections: set[asyncio.Task[None]] = field(default_factory=set)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @contextlib.asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        server = await asyncio.start_server(self._accept, "127.0.0.1", 0, limit=HEAD_LIMIT)
        self.port = server.sockets[0].getsockname()[1]
        try:
            yield
        finally:
            server.close()
            for task in self._connections:
                task.cancel()
            await asyncio.gather(*self._connections, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # asyncio itself keeps no hold on it
        task = asyncio.create_task(self._serve(reader, writer))
        self._connections.add(task)
        task.add_done_callback(self._connections.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            there = await asyncio.open_connection(*self.upstream(), limit=HEAD_LIMIT)
        except OSError:
            _reset(writer)
            return
        try:
            while await self._exchange((reader, writer), there):
                pass
        except (Broken, OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            _reset(writer)
        finally:
            for end in (writer, there[1]):
                end.close()

    async def _exchange(self, here: _Ends, there: _Ends) -> bool:
        """One request and its answer; false when the connection is over."""
        request = await _head(here[0])
        if request is None:
            return False
        if self.faults.delay:
            await asyncio.sleep(self.faults.delay * self.faults.chance.random() * 2)
        if self.faults.chance.random() < self.faults.refuse:
            self.broken += 1
            await _refuse(request, *here)
            return False
        lost = self.faults.chance.random() < self.faults.reset
        if lost and self.faults.chance.random() < 0.5:
            self.broken += 1
            raise Broken("reset before the store saw the request")
        there[1].write(request.raw)
        sending = asyncio.ensure_future(_carry(request, here[0], there[1]))
        try:
            answer = await self._answer(here[1], there[0])
            if lost:
                self.broken += 1
                raise Broken("the store has done it, and nobody is told")
            here[1].write(answer.raw)
            if request.first.startswith(b"HEAD ") or answer.status in NO_BODY:
                await here[1].drain()
            else:
                await _carry(answer, there[0], here[1], to_end=True)
            whole = sending.done()
        finally:
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)
        self.passed += 1
        return whole and not request.closes and not answer.closes

    async def _answer(self, writer: asyncio.StreamWriter, there: asyncio.StreamReader) -> Head:
        """The final answer's head; `100 Continue` is passed on on the way."""
        while True:
            answer = await _head(there)
            if answer is None:
                raise Broken("the store hung up")
            if answer.status != 100:
                return answer
            writer.write(answer.raw)
            await writer.drain()


_Ends = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def _head(reader: asyncio.StreamReader) -> Head | None:
    """Up to the blank line; None when the other side is through."""
    try:
        raw = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError as error:
        if error.partial:
            raise
        return None
    first, *lines = raw[:-4].split(b"\r\n")
    pairs = (line.split(b":", 1) for line in lines)
    return Head(first, {name.strip().lower(): value.strip() for name, value in pairs}, raw)


async def _carry(
    head: Head, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, to_end: bool = False
) -> None:
    """The body that `head` announces. `to_end`: without an announcement it ends with the reader."""
    if head.chunked:
        await _carry_chunks(reader, writer)
    elif head.length is not None:
        left = head.length
        while left:
            data = await reader.read(min(left, CHUNK))
            if not data:
                raise Broken("a body ended early")
            writer.write(data)
            await writer.drain()
            left -= len(data)
    elif to_end:
        while data := await reader.read(CHUNK):
            writer.write(data)
            await writer.drain()
    await writer.drain()


async def _carry_chunks(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while True:
        line = await reader.readuntil(b"\r\n")
        size = int(line.split(b";", 1)[0], 16)
        writer.write(line)
        if size:
            writer.write(await reader.readexactly(size + 2))
            await writer.drain()
            continue
        while (trailer := await reader.readuntil(b"\r\n")) != b"\r\n":
            writer.write(trailer)
        writer.write(b"\r\n")
        return


async def _refuse(
    request: Head, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    if b"expect" not in request.headers and request.length:
        await reader.readexactly(request.length)  # a client that still sends would miss the answer
    head = "HTTP/1.1 503 Slow Down\r\nContent-Type: application/xml\r\n"
    head += f"Content-Length: {len(REFUSAL)}\r\nConnection: close\r\n\r\n"
    writer.write(head.encode() + REFUSAL)
    await writer.drain()


def _reset(writer: asyncio.StreamWriter) -> None:
    """RST instead of FIN: the client must not take it for a short answer."""
    sock = writer.get_extra_info("socket")
    if sock is not None:
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()
