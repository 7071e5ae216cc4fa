"""The box's two ports, carried by the keeper. Apart from it, because asyncio takes longer to import
than a box takes to start."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
from typing import Any

CHUNK = 64 * 1024
# Said aloud: asyncio sets TCP_NODELAY only on a socket that knows its protocol, and without it
# every small answer waits 40 ms.
TCP = socket.IPPROTO_TCP


async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(CHUNK):
            writer.write(data)
            await writer.drain()
        if writer.can_write_eof():
            writer.write_eof()
    except (ConnectionError, OSError):
        writer.close()


class Keeper:
    def __init__(self, box: dict[str, Any]) -> None:
        self.box = box
        self.pipes: set[asyncio.Task[None]] = set()

    async def carry(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, family: int, address: Any
    ) -> None:
        there = socket.socket(family, socket.SOCK_STREAM, TCP if family == socket.AF_INET else 0)
        there.setblocking(False)
        try:
            await asyncio.get_running_loop().sock_connect(there, address)
            far_reader, far_writer = await asyncio.open_connection(sock=there)
        except OSError:
            there.close()
            writer.close()
            return
        try:
            async with asyncio.TaskGroup() as both:
                both.create_task(pump(reader, far_writer))
                both.create_task(pump(far_reader, writer))
        finally:
            far_writer.close()
            writer.close()

    async def to_gateway(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await self.carry(reader, writer, socket.AF_UNIX, self.box["gateway_socket"])

    async def to_agent(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await self.carry(reader, writer, socket.AF_INET, ("127.0.0.1", self.box["agent_port"]))

    async def serve(
        self, bwrap: subprocess.Popen[bytes], outside: socket.socket, inside: socket.socket
    ) -> None:
        loop = asyncio.get_running_loop()
        ended = asyncio.Event()
        fd = os.pidfd_open(bwrap.pid)
        loop.add_reader(fd, ended.set)
        loop.add_signal_handler(signal.SIGTERM, bwrap.kill)
        outward = await asyncio.start_unix_server(self.to_agent, sock=outside)
        inward = await asyncio.start_server(self.to_gateway, sock=inside)
        async with outward, inward:
            await ended.wait()
        os.unlink(self.box["agent_socket"])  # noqa: PTH108
