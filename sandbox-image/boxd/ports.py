"""The two ports of the container, carried to and from unix sockets."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

GATEWAY_PORT = 8080
AGENT_PORT = 2468
CHUNK = 64 * 1024

Reader = asyncio.StreamReader
Writer = asyncio.StreamWriter


async def pump(reader: Reader, writer: Writer) -> None:
    try:
        while data := await reader.read(CHUNK):
            writer.write(data)
            await writer.drain()
        if writer.can_write_eof():
            writer.write_eof()
    except OSError:
        writer.close()


def carry(connect: Callable[[], Awaitable[tuple[Reader, Writer]]]) -> Callable[..., Any]:
    """A handler of connections that passes each on to what `connect` opens."""

    async def one(reader: Reader, writer: Writer) -> None:
        try:
            far_reader, far_writer = await connect()
        except OSError:
            writer.close()
            return
        try:
            await asyncio.gather(pump(reader, far_writer), pump(far_reader, writer))
        finally:
            far_writer.close()
            writer.close()

    return one


def listening_on(host: str, port: int) -> socket.socket:
    # The protocol is said aloud: asyncio sets TCP_NODELAY only on a socket that knows it, and the
    # connections of `socket.create_server` do not. Without it an answer may wait for 40 ms.
    there = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        there.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        there.bind((host, port))
        there.listen()
    except OSError:
        there.close()
        raise
    return there


async def to_agent() -> tuple[Reader, Writer]:
    # The protocol is said aloud: asyncio sets TCP_NODELAY only on a socket that knows it.
    there = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    there.setblocking(False)
    try:
        await asyncio.get_running_loop().sock_connect(there, ("127.0.0.1", AGENT_PORT))
    except OSError:
        there.close()
        raise
    return await asyncio.open_connection(sock=there)


def listening(path: Path) -> socket.socket:
    path.unlink(missing_ok=True)
    there = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    there.bind(str(path))
    return there


async def carry_both(gateway: Path, agent: Path) -> None:
    """What connects to the gateway's port ends up at its socket, and what connects to `agent`, at
    sandbox-agent's port."""
    await asyncio.start_server(
        carry(lambda: asyncio.open_unix_connection(str(gateway))),
        sock=listening_on("127.0.0.1", GATEWAY_PORT),
    )
    await asyncio.start_unix_server(carry(to_agent), sock=listening(agent))
