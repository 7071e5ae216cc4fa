"""Sockets inside another network: a box's, which has nothing but a loopback, or a container's.

A socket belongs to the network of the thread that makes it, for good: a thread joins the box's
network, makes the socket and ends. No process and no file of ours is inside. Needs root.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import socket
import threading
from collections.abc import AsyncIterator, Callable, Sequence

from emulators.boxes import BoxNotRunning
from emulators.http_server import reset_transport
from emulators.options import LOOPBACK, Way

CHUNK = 1 << 16
_CLONE_NEWNET = 0x40000000
_libc = ctypes.CDLL(None, use_errno=True)


async def connect(pidfd: int, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A connection to a port of the loopback in the network of the process of `pidfd`.

    Raises: ConnectionRefusedError; BoxNotRunning, when that process has ended.
    """
    made = _within(pidfd, _tcp_socket)
    try:
        await asyncio.get_running_loop().sock_connect(made, (LOOPBACK, port))
        return await asyncio.open_connection(sock=made)
    except BaseException:
        made.close()
        raise


@contextlib.asynccontextmanager
async def reaching(pidfd: int, ways: Sequence[Way]) -> AsyncIterator[None]:
    """Let these ports of the loopback in that network lead where they say. Where nobody listens
    there, a connection is reset at once.

    Raises: BoxNotRunning; OSError, when one of the ports is taken.
    """

    def listener(port: int) -> Callable[[], socket.socket]:
        def listen() -> socket.socket:
            made = _tcp_socket()
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            made.bind((LOOPBACK, port))
            made.listen(128)
            return made

        return listen

    carried: set[asyncio.Task[None]] = set()
    async with contextlib.AsyncExitStack() as stack:
        stack.push_async_callback(_end, carried)
        for way in ways:
            made = _within(pidfd, listener(way.port))
            server = await asyncio.start_server(_carrier(way, carried), sock=made)
            stack.callback(server.close)
        yield


def _carrier(
    way: Way, carried: set[asyncio.Task[None]]
) -> Callable[[asyncio.StreamReader, asyncio.StreamWriter], None]:
    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(_carry(way, reader, writer))
        carried.add(task)
        task.add_done_callback(carried.discard)

    return accept


async def _end(carried: set[asyncio.Task[None]]) -> None:
    tasks = set(carried)
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks)


async def _carry(way: Way, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        far_reader, far_writer = await asyncio.open_connection(way.host, way.to)
    except OSError:
        reset_transport(writer.transport)
        return
    try:
        async with asyncio.TaskGroup() as both:
            both.create_task(_pump(reader, far_writer))
            both.create_task(_pump(far_reader, writer))
    except* OSError:
        for each in (writer, far_writer):
            reset_transport(each.transport)
    finally:
        far_writer.close()
        writer.close()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(CHUNK):
        writer.write(data)
        await writer.drain()
    writer.write_eof()


def _tcp_socket() -> socket.socket:
    # The protocol said aloud: asyncio sets TCP_NODELAY only on a socket that knows it, and without
    # that every small answer waits 40 ms.
    return socket.socket(
        socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_NONBLOCK, socket.IPPROTO_TCP
    )


def _within(pidfd: int, make: Callable[[], socket.socket]) -> socket.socket:
    """Call `make` in the network of the box, in a thread of its own: one of a pool would carry that
    network on to whoever uses it next. It is waited for at once, as it takes no time."""
    made: list[socket.socket | OSError] = []

    def work() -> None:
        try:
            _join_network(pidfd)
            made.append(make())
        except OSError as error:
            made.append(error)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join()
    if isinstance(made[0], ProcessLookupError):
        raise BoxNotRunning("the box has ended") from made[0]
    if isinstance(made[0], OSError):
        raise made[0]
    return made[0]


def _join_network(pidfd: int) -> None:
    if _libc.setns(pidfd, _CLONE_NEWNET) != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"setns: {os.strerror(code)}")
