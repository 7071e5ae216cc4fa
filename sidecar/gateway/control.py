"""The control API: which sessions have a socket, on what terms, and what was noted of them. Reached
by its own unix socket, mode 0600."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Annotated
from uuid import UUID

import httpx
from fastapi import FastAPI, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel
from starlette.exceptions import HTTPException

from contracts.bodies import GatewayRecords, Health, Terms
from contracts.errors import (
    BadRequest,
    HoldfastError,
    InvalidInput,
    NotFound,
    SessionNotFound,
)
from contracts.logs import Traced
from sidecar.gateway.egress.proxy import Allowed, Proxy, WayOut
from sidecar.gateway.metering import prices
from sidecar.gateway.metering.request import Meter
from sidecar.gateway.records import EGRESS, Records, SessionLog
from sidecar.gateway.remote import RemoteApp
from sidecar.gateway.session_app import SessionApp
from sidecar.gateway.settings import Settings
from sidecar.gateway.sockets import SessionSockets, on_port
from sidecar.gateway.upstream import LIMITS, TIMEOUT, trusted_authorities, upstreams

# Longer waits are for who asks to ask again.
MAX_WAIT_SECONDS = 30.0


class SessionSocket(BaseModel):
    socket: Path


class SessionClosed(BaseModel):
    """`closed` is false when the session had no socket."""

    session_id: UUID
    closed: bool


def control_app(settings: Settings) -> FastAPI:
    """Raises: ValueError, when the prices that are named cannot be read."""
    table = prices.load(settings.model_prices)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with AsyncExitStack() as stack:
            way = stack.enter_context(WayOut.of_this_machine(settings.egress_rules))
            client = await stack.enter_async_context(
                httpx.AsyncClient(timeout=TIMEOUT, limits=LIMITS, verify=trusted_authorities())
            )
            reachable = upstreams(settings, client)
            records = Records(settings.gateway_dir)
            sockets = SessionSockets(
                settings.gateway_dir,
                lambda session_id: Traced(
                    SessionApp(session_id, reachable, Meter(records.of(session_id), table)),
                    session_id=str(session_id),
                ),
                lambda session_id: _proxy(session_id, way, records.of(session_id)),
            )
            async with sockets.serving(), _for_clouds(settings, sockets):
                app.state.sockets = sockets
                app.state.records = records
                yield

    app = FastAPI(title="Holdfast model gateway", lifespan=lifespan, openapi_url=None)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _http)
    app.add_exception_handler(HoldfastError, _known)
    _add_routes(app)
    return app


def _add_routes(app: FastAPI) -> None:
    @app.get("/healthz")
    async def health() -> Health:
        return Health()

    @app.put("/sessions/{session_id}")
    async def open_session(
        request: Request, session_id: UUID, terms: Terms | None = None
    ) -> SessionSocket:
        sockets: SessionSockets = request.app.state.sockets
        socket = await sockets.open(session_id)
        if terms is not None:
            log = _log(request, session_id)
            log.agree(terms)
            if "turn_id" in terms.model_fields_set:
                sockets.proxy(session_id).begin_turn(_allowed(log.terms))
        return SessionSocket(socket=socket)

    @app.get("/sessions/{session_id}/records")
    async def read_records(
        request: Request,
        session_id: UUID,
        after: Annotated[int, Query(ge=0)] = 0,
        wait: Annotated[float, Query(ge=0, le=MAX_WAIT_SECONDS)] = 0.0,
        idle: bool = False,
    ) -> GatewayRecords:
        """What was noted after `after`; waits up to `wait` seconds for something, or with `idle`
        until no request of the session is on its way. Who does not wait for something gets all,
        also what is held back to be told together."""
        log = _log(request, session_id)
        if idle:
            await log.wait(after, wait, idle=True)
            log = _log(request, session_id)  # it may have been closed meanwhile
        if idle or wait == 0:
            request.app.state.sockets.proxy(session_id).flush()
            return log.after(after)
        return await log.wait(after, wait)

    @app.delete("/sessions/{session_id}/records")
    async def take_records(
        request: Request, session_id: UUID, upto: Annotated[int, Query(ge=0)]
    ) -> GatewayRecords:
        """Forget what is kept elsewhere by now."""
        log = _log(request, session_id)
        log.taken(upto)
        return log.after(upto)

    @app.delete("/sessions/{session_id}")
    async def close_session(request: Request, session_id: UUID) -> SessionClosed:
        sockets: SessionSockets = request.app.state.sockets
        closed = await sockets.close(session_id)
        request.app.state.records.remove(session_id)
        return SessionClosed(session_id=session_id, closed=closed)


def _allowed(terms: Terms) -> Allowed:
    return Allowed(terms.egress or "off", tuple(terms.egress_hosts or ()))


def _proxy(session_id: UUID, way: WayOut, log: SessionLog) -> Proxy:
    return Proxy(str(session_id), way, lambda told: log.add(EGRESS, told), _allowed(log.terms))


def _log(request: Request, session_id: UUID) -> SessionLog:
    """Raises: SessionNotFound."""
    if request.app.state.sockets.app(session_id) is None:
        raise SessionNotFound(f"The session {session_id} is not open here.", hint="PUT it first.")
    records: Records = request.app.state.records
    return records.of(session_id)


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


def _known(_request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HoldfastError)
    return _rendered(error, error.status)


def _invalid(_request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    place = ".".join(str(step) for step in first["loc"])
    message = f"{place}: {first['msg']}"
    if "session_id" in first["loc"]:
        message = "The session id is not a UUID."
    told = InvalidInput(message, hint="Use the id the api gave out.")
    return _rendered(told, told.status)


def _http(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    message = f"{request.method} {request.url.path}: {error.detail}"
    kind = NotFound if error.status_code == NotFound.status else BadRequest
    return _rendered(kind(message), error.status_code)
