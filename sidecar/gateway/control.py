"""The control API: which sessions have a socket. Reached by its own unix socket, mode 0600."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from uuid import UUID

import httpx
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel
from starlette.exceptions import HTTPException

from contracts.bodies import Health
from contracts.errors import BadRequest, HoldfastError, InvalidInput, NotFound
from contracts.logs import Traced
from sidecar.gateway.remote import RemoteApp
from sidecar.gateway.session_app import SessionApp
from sidecar.gateway.settings import Settings
from sidecar.gateway.sockets import SessionSockets, on_port
from sidecar.gateway.upstream import LIMITS, TIMEOUT, upstreams


class SessionSocket(BaseModel):
    socket: Path


class SessionClosed(BaseModel):
    """`closed` is false when the session had no socket."""

    session_id: UUID
    closed: bool


def control_app(settings: Settings) -> FastAPI:
    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with httpx.AsyncClient(timeout=TIMEOUT, limits=LIMITS) as client:
            reachable = upstreams(settings, client)
            sockets = SessionSockets(
                settings.gateway_dir,
                lambda session_id: Traced(SessionApp(session_id, reachable), session_id=session_id),
            )
            async with sockets.serving(), _for_clouds(settings, sockets):
                app.state.sockets = sockets
                yield

    app = FastAPI(title="Holdfast model gateway", lifespan=lifespan, openapi_url=None)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _http)

    @app.get("/healthz")
    async def health() -> Health:
        return Health()

    @app.put("/sessions/{session_id}")
    async def open_session(request: Request, session_id: UUID) -> SessionSocket:
        sockets: SessionSockets = request.app.state.sockets
        return SessionSocket(socket=await sockets.open(session_id))

    @app.delete("/sessions/{session_id}")
    async def close_session(request: Request, session_id: UUID) -> SessionClosed:
        sockets: SessionSockets = request.app.state.sockets
        closed = await sockets.close(session_id)
        return SessionClosed(session_id=session_id, closed=closed)

    return app


@asynccontextmanager
async def _for_clouds(settings: Settings, sockets: SessionSockets) -> AsyncIterator[None]:
    if settings.gateway_port is None or settings.gateway_secret is None:
        yield
        return
    secret = settings.gateway_secret.get_secret_value().encode()
    app = RemoteApp(secret, sockets)
    async with on_port(app, settings.gateway_host, settings.gateway_port):
        yield


def _rendered(error: HoldfastError, status: int) -> JSONResponse:
    return JSONResponse({"error": error.body()}, status_code=status)


def _invalid(_request: Request, _error: Exception) -> JSONResponse:
    error = InvalidInput("The session id is not a UUID.", hint="Use the id the api gave out.")
    return _rendered(error, error.status)


def _http(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    message = f"{request.method} {request.url.path}: {error.detail}"
    kind = NotFound if error.status_code == NotFound.status else BadRequest
    return _rendered(kind(message), error.status_code)
