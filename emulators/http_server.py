"""An ASGI app on a socket, for as long as a block runs."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Any, Literal

import uvicorn
from starlette.types import ASGIApp, Receive
from uvicorn.protocols.http.h11_impl import H11Protocol

# Longer than any client keeps an idle connection: the server closing first is a race that the real
# services, behind their load balancers, hardly ever run.
KEEP_ALIVE_SECONDS = 300
END_SECONDS = 2
TRANSPORT = "emulator.transport"
_RESET = struct.pack("ii", 1, 0)  # SO_LINGER on, for no time: closing sends RST


@contextlib.asynccontextmanager
async def http_server(
    app: ASGIApp, host: str, port: int = 0, *, ws: Literal["none", "wsproto"] = "none"
) -> AsyncIterator[str]:
    """Serve on `host`:`port` (0: any free one) and yield the URL. On leaving, open connections are
    cut, and requests that do not end by that are cancelled. `ws` is what speaks WebSocket.

    Raises: OSError, when the port is taken.
    """
    config = uvicorn.Config(
        app,
        http=_Protocol,
        ws=ws,
        lifespan="off",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        # what a box answers is passed on as it is, its own Date and Server with it
        server_header=False,
        date_header=False,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=END_SECONDS,
    )
    with listening(host, port) as listener:
        server = _Server(config)
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        try:
            # The kernel takes connections from here on, whenever uvicorn comes to accept them.
            yield f"http://{host}:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            for connection in list(server.server_state.connections):
                connection.transport.abort()
            await serving


@contextlib.contextmanager
def listening(host: str, port: int) -> Iterator[socket.socket]:
    """A listening TCP socket. Raises: OSError."""
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    with listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(1024)
        listener.setblocking(False)
        yield listener


async def reset_connection(scope: Mapping[str, Any], receive: Receive) -> None:
    """Reset the connection that a request came by; only under `http_server`. Nothing may be sent
    afterwards."""
    transport: asyncio.Transport = scope["state"][TRANSPORT]
    reset_transport(transport)
    # The server has to notice first: it would try to answer in the app's place.
    while (await receive())["type"] != "http.disconnect":
        pass


def reset_transport(transport: asyncio.BaseTransport) -> None:
    """Close a TCP connection so that the other end gets ECONNRESET, and no end of file."""
    assert isinstance(transport, asyncio.Transport)
    if not transport.is_closing():
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        transport.abort()


class _Server(uvicorn.Server):
    """The process has its own signal handlers."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class _Protocol(H11Protocol):
    """Tells the app its connection, as `scope["state"][TRANSPORT]`."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.app_state = {**self.app_state, TRANSPORT: transport}
