"""The sessions' unix sockets: opened and closed as it runs, found again when it starts."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Self
from uuid import UUID

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from sidecar.gateway.egress.proxy import Proxy
from sidecar.gateway.front import Front
from sidecar.sockets import private_socket

logger = logging.getLogger(__name__)

# One directory per session: a container gets the directory bound, and so sees the socket of the
# next gateway too.
_NAME = "sock"
# Longer than any harness keeps an idle connection, so that the harness is the one to close it and
# never sends a request into a connection that is just being closed.
_KEEP_ALIVE_SECONDS = 120


class _Listener:
    """One listening socket, served by uvicorn's own protocol class with an app of its own.

    A `uvicorn.Server` per session would bring a main loop, signal handlers and a start-up phase
    each; the protocol class is all of it that HTTP needs.
    """

    def __init__(
        self, path: Path, app: ASGIApp, proxy: Proxy, server: asyncio.Server, front: Front
    ) -> None:
        self.path = path
        self.app = app
        self.proxy = proxy
        self._server = server
        self._front = front
        self._inode = path.stat().st_ino

    @classmethod
    async def open(cls, path: Path, app: ASGIApp, proxy: Proxy) -> Self:
        front = Front(_http(app)[0], proxy.protocol)
        # not create_unix_server: from Python 3.13 on that removes the path when it closes, and a
        # path that stays is how the next gateway knows which sessions to serve
        server = await asyncio.get_running_loop().create_server(
            front.protocol, sock=taking_over(path)
        )
        return cls(path, app, proxy, server, front)

    def is_current(self) -> bool:
        """False when something else took the path, or removed it."""
        try:
            return self.path.stat().st_ino == self._inode
        except FileNotFoundError:
            return False

    def close(self) -> None:
        """Stop at once: a running request is cut off, and its work ends with it."""
        self._server.close()
        self.proxy.close()
        self._front.abort()


def _http(app: ASGIApp) -> tuple[Callable[[], H11Protocol], ServerState]:
    """What makes uvicorn's protocols, and what they have in common."""
    config = uvicorn.Config(
        app,
        http="h11",
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_keep_alive=_KEEP_ALIVE_SECONDS,
    )
    state = ServerState()
    return lambda: H11Protocol(config, state, {}), state


@asynccontextmanager
async def on_port(app: ASGIApp, host: str, port: int) -> AsyncIterator[None]:
    """Serve the app on a port of ours. Raises: OSError, when it is taken."""
    listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listening.bind((host, port))
    made, state = _http(app)
    server = await asyncio.get_running_loop().create_server(made, sock=listening)
    try:
        yield
    finally:
        server.close()
        for connection in list(state.connections):
            connection.transport.abort()


class SessionSockets:
    """Which sessions are served, and where."""

    def __init__(
        self,
        directory: Path,
        app_for: Callable[[UUID], ASGIApp],
        proxy_for: Callable[[UUID], Proxy],
    ) -> None:
        self._directory = directory
        self._app_for = app_for
        self._proxy_for = proxy_for
        self._listeners: dict[UUID, _Listener] = {}
        self._lock = asyncio.Lock()

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[Self]:
        """Serve the sockets left by the gateway before this one, and leave them to the next."""
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            for path in sorted(self._directory.glob(f"*/{_NAME}")):
                session_id = _session_of(path)
                if session_id and path.is_socket():
                    await self.open(session_id)
            yield self
        finally:
            for listener in self._listeners.values():
                listener.close()

    async def open(self, session_id: UUID) -> Path:
        async with self._lock:
            listener = self._listeners.get(session_id)
            if listener and listener.is_current():
                return listener.path
            if listener:
                listener.close()
            path = self._directory / str(session_id) / _NAME
            path.parent.mkdir(mode=0o700, exist_ok=True)
            app, proxy = self._app_for(session_id), self._proxy_for(session_id)
            self._listeners[session_id] = await _Listener.open(path, app, proxy)
            logger.info("session=%s socket opened", session_id)
            return path

    def app(self, session_id: UUID) -> ASGIApp | None:
        """What serves the session, if it is open."""
        listener = self._listeners.get(session_id)
        return None if listener is None else listener.app

    def proxy(self, session_id: UUID) -> Proxy:
        """The way out of a session that is open."""
        return self._listeners[session_id].proxy

    async def close(self, session_id: UUID) -> bool:
        """False when the session had no socket."""
        async with self._lock:
            listener = self._listeners.pop(session_id, None)
            if listener is None:
                return False
            listener.close()
            listener.path.unlink(missing_ok=True)
            listener.path.parent.rmdir()
            logger.info("session=%s socket closed", session_id)
            return True


def taking_over(path: Path) -> socket.socket:
    """A private socket at `path`; it takes the place, and the owner, of one that is there."""
    owner = _remove_stale(path)
    listening = private_socket(path)
    if owner and owner != (os.geteuid(), os.getegid()):
        os.chown(path, *owner)  # a sandbox's user was given it
    return listening


def _remove_stale(path: Path) -> tuple[int, int] | None:
    try:
        status = path.lstat()
        path.unlink()
    except FileNotFoundError:
        return None
    return status.st_uid, status.st_gid


def _session_of(path: Path) -> UUID | None:
    try:
        session_id = UUID(path.parent.name)
    except ValueError:
        return None
    return session_id if str(session_id) == path.parent.name else None
