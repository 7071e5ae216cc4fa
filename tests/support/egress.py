"""A session's socket with a proxy on it that may reach listeners of our own, and those listeners.

The proxy is the real one; only where names lead and which addresses are public is of the test's
making. There is no setting that could do the same.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from ipaddress import ip_address
from pathlib import Path
from socket import socket
from typing import Any
from uuid import UUID, uuid4

from starlette.types import Receive, Scope, Send

from sidecar.gateway.egress.addresses import Address, PublicOnly, dial
from sidecar.gateway.egress.proxy import Allowed, Proxy, Rules, WayOut
from sidecar.gateway.sockets import SessionSockets
from tests.support.gateway import until

OPEN = Allowed("open")
ANY_PORT = frozenset(range(1, 0x10000))  # listeners of tests have any
Connected = tuple[bytes, asyncio.StreamReader, asyncio.StreamWriter]
Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@dataclass
class Permitting:
    """The policy of production, but for single ports of loopback."""

    ports: set[int] = field(default_factory=set)

    def refuses(self, address: Address, port: int) -> str:
        if address == ip_address("127.0.0.1") and port in self.ports:
            return ""
        return PublicOnly(is_own=lambda _: False).refuses(address, port)


@dataclass
class Names:
    """What names lead to; of several answers each is given once, the last for ever."""

    known: dict[str, list[Sequence[str]]] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)

    async def __call__(self, name: str) -> Sequence[str]:
        self.asked.append(name)
        answers = self.known.get(name)
        if not answers:
            raise OSError(f"{name} is not known")
        return answers.pop(0) if len(answers) > 1 else answers[0]


@dataclass
class Dialled:
    """Connects to loopback, and to nothing else whatever it is told; notes all."""

    addresses: list[tuple[str, int]] = field(default_factory=list)

    async def __call__(self, address: Address, port: int) -> socket:
        self.addresses.append((str(address), port))
        if not address.is_loopback:
            raise OSError("tests connect to loopback only")
        return await dial(address, port)


@dataclass
class Running:
    proxy: Proxy
    path: Path
    policy: Permitting
    names: Names
    dialled: Dialled
    told: list[dict[str, Any]]
    way: WayOut

    def permit(self, name: str, port: int) -> None:
        """The name leads to this port of ours."""
        self.policy.ports.add(port)
        self.names.known[name] = [["127.0.0.1"]]

    async def ask(self, request: bytes) -> bytes:
        """All that comes back for these bytes."""
        reader, writer = await asyncio.open_unix_connection(str(self.path))
        try:
            async with asyncio.timeout(20):
                writer.write(request)
                await writer.drain()
                return await reader.read(-1)
        except ConnectionError:
            return b""
        finally:
            writer.close()

    async def connect(
        self, target: str
    ) -> tuple[bytes, asyncio.StreamReader, asyncio.StreamWriter]:
        """The status line of a CONNECT, and the connection."""
        reader, writer = await asyncio.open_unix_connection(str(self.path))
        writer.write(f"CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\n".encode())
        async with asyncio.timeout(20):
            head = await reader.readuntil(b"\r\n\r\n")
        return head.split(b"\r\n")[0], reader, writer


async def _models(scope: Scope, receive: Receive, send: Send) -> None:
    """Stands where the model APIs are."""
    body = f"model {scope['method']} {scope['path']}".encode()
    length = (b"content-length", str(len(body)).encode())
    await send({"type": "http.response.start", "status": 200, "headers": [length]})
    await send({"type": "http.response.body", "body": body})


@asynccontextmanager
async def running(
    allowed: Allowed = OPEN,
    rules: Rules | None = None,
    session_id: UUID | None = None,
    way: WayOut | None = None,
) -> AsyncIterator[Running]:
    """With the `way` of another one, both are sessions of one gateway."""
    policy, names, dialled = Permitting(), Names(), Dialled()
    told: list[dict[str, Any]] = []
    way = way or WayOut(rules or Rules(ports=ANY_PORT), policy, names, dialled)
    proxy = Proxy("a-session", way, told.append, allowed)
    # not pytest's tmp_path: a unix socket's path has room for 107 bytes only
    with tempfile.TemporaryDirectory(prefix="eg-") as directory:
        sockets = SessionSockets(Path(directory), lambda _: _models, lambda _: proxy)
        async with sockets.serving():
            path = await sockets.open(session_id or uuid4())
            yield Running(proxy, path, policy, names, dialled, told, way)


@asynccontextmanager
async def listener(serve: Serve) -> AsyncIterator[int]:
    """The port of loopback where connections are served."""

    async def one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await serve(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(one, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()


def status(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1])


def code(answer: bytes) -> str:
    """Of a refusal."""
    return str(json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["code"])


def said(told: dict[str, Any]) -> tuple[str, str, str]:
    return told["host"], told["verdict"], told["reason"]


async def last(there: Running, count: int = 1) -> dict[str, Any]:
    """The newest of at least `count` records."""
    await until(lambda: len(there.told) >= count)
    return there.told[-1]


async def rest(reader: asyncio.StreamReader) -> bytes:
    """What comes until the connection is ended, in order or not."""
    got = b""
    async with asyncio.timeout(20):
        try:
            while data := await reader.read(65536):
                got += data
        except ConnectionError:
            pass
    return got


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65536):
        writer.write(data)
        await writer.drain()
    writer.write_eof()


@dataclass
class Web:
    """A plain HTTP host: notes the bytes of each connection's head and gives its answer."""

    answer: bytes = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi"
    heads: list[bytes] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        self.heads.append(head)
        lowered = head.lower()
        body = b""
        if b"content-length: " in lowered:
            length = int(lowered.split(b"content-length: ")[1].split(b"\r\n")[0])
            body = await reader.readexactly(length)
        elif b"transfer-encoding: chunked" in lowered:
            body = await reader.readuntil(b"0\r\n\r\n")
        self.bodies.append(body)
        writer.write(self.answer)
        await writer.drain()
