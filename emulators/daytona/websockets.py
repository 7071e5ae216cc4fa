"""`emulators.http_server`, with WebSockets."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import uvicorn
from starlette.types import ASGIApp

from emulators import http_server as plain


@contextlib.asynccontextmanager
async def websocket_server(app: ASGIApp, host: str, port: int) -> AsyncIterator[str]:
    """As `http_server`. Raises: OSError, when the port is taken."""
    config = uvicorn.Config(
        app,
        http=plain._Protocol,
        ws="wsproto",
        lifespan="off",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        date_header=False,
        timeout_keep_alive=plain.KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=plain.END_SECONDS,
    )
    with plain.listening(host, port) as listener:
        server = plain._Server(config)
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        try:
            yield f"http://{host}:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            for connection in list(server.server_state.connections):
                if isinstance(connection, plain._Protocol):
                    connection.transport.abort()
            await serving
