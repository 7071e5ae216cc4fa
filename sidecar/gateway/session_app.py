"""What a session's socket serves: the model APIs, real or scripted."""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import AsyncIterator, Iterable, Mapping
from typing import Any
from uuid import UUID

from starlette.types import Receive, Scope, Send

from sidecar.gateway.exchange import BadBody, Exchange, HungUp, decoded, parsed
from sidecar.gateway.families import (
    FORMATS,
    MODELS,
    SCRIPTED_MODEL,
    Family,
    error_body,
    scripted_models,
)
from sidecar.gateway.metering.hiding import asking_for_usage
from sidecar.gateway.metering.reading import READERS
from sidecar.gateway.metering.request import (
    BUDGET_SPENT,
    REFUSED_STATUS,
    Meter,
    ModelRequest,
    Refused,
)
from sidecar.gateway.scripted.conversation import Json
from sidecar.gateway.scripted.model import answer
from sidecar.gateway.scripted.protocol import Frame
from sidecar.gateway.scripted.reply import Failure, seconds
from sidecar.gateway.scripted.side import is_side
from sidecar.gateway.upstream import Upstream

logger = logging.getLogger(__name__)

# The name comes from a sandbox: nothing in it may forge a log line.
_LOGGED_MODEL = re.compile(r"[\w.:/@\[\]-]{1,100}")
_SSE = {"content-type": "text/event-stream", "cache-control": "no-cache"}
_SSE_HEADERS = [(name.encode(), value.encode()) for name, value in _SSE.items()]


class SessionApp:
    """An ASGI app for one session: whose request it is follows from the socket it came by."""

    def __init__(
        self, session_id: UUID, upstreams: Mapping[Family, Upstream], meter: Meter
    ) -> None:
        self._session_id = session_id
        self._upstreams = upstreams
        self._meter = meter

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        exchange = Exchange(scope, receive, send)
        family = _family(exchange)
        started = time.monotonic()
        try:
            body = await exchange.body()
            await exchange.until_hangup(self._serve(exchange, family, body))
        except HungUp:
            pass
        except BadBody as error:
            self._meter.unreadable(error.status, error.message)
            await _refuse(exchange, family, error.status, error.message)
        finally:
            logger.info(
                "session=%s family=%s model=%s status=%d ms=%d",
                self._session_id,
                family,
                exchange.model,
                exchange.status,
                (time.monotonic() - started) * 1000,
            )

    async def _serve(self, exchange: Exchange, family: Family, raw: bytes) -> None:
        if exchange.path == "/" and exchange.method in ("GET", "HEAD"):
            await exchange.answer(200, {})  # how some clients ask whether anyone is there
            return
        wanted = "GET" if exchange.path == MODELS else "POST"
        if exchange.path != MODELS and exchange.path not in FORMATS:
            await _refuse(exchange, family, 404, f"There is no {exchange.path} here.")
        elif exchange.method != wanted:
            await _refuse(exchange, family, 405, f"{exchange.path} takes {wanted}.")
        elif exchange.path == MODELS and family not in self._upstreams:
            await exchange.answer(200, scripted_models(family))
        else:
            await self._model(exchange, family, raw)

    async def _model(self, exchange: Exchange, family: Family, raw: bytes) -> None:
        body: Json = {}
        fault: BadBody | None = None
        try:
            body = parsed(decoded(raw, exchange.headers.get("content-encoding", "").lower()))
        except BadBody as error:
            fault = error
        exchange.model = _logged(body.get("model"))
        scripted = family not in self._upstreams
        if scripted and fault:
            self._meter.unreadable(fault.status, fault.message)
            await _refuse(exchange, family, fault.status, fault.message)
            return
        if exchange.path not in READERS:  # nothing that uses a model
            await self._unmetered(exchange, family, raw, body)
            return
        model = SCRIPTED_MODEL if scripted else exchange.model
        try:
            side = fault is None and is_side(FORMATS[exchange.path][1].conversation(body))
            request = self._meter.begin(exchange.path, model, len(raw), side=side)
        except Refused as refused:
            told = error_body(family, REFUSED_STATUS, refused.message, BUDGET_SPENT)
            await exchange.answer(REFUSED_STATUS, told)
            return
        try:
            if scripted:
                await self._script(exchange, family, body, request)
            else:
                # also what we cannot read: that is between the harness and its vendor
                asking = None if fault else asking_for_usage(exchange.path, body)
                await self._upstreams[family].relay(
                    exchange, asking or raw, request, asked_for_usage=asking is not None
                )
        finally:
            request.close()

    async def _unmetered(self, exchange: Exchange, family: Family, raw: bytes, body: Json) -> None:
        if family in self._upstreams:
            await self._upstreams[family].relay(exchange, raw)
        else:
            _, wire = FORMATS[exchange.path]
            await exchange.answer(200, {"input_tokens": wire.tokens(body)})

    async def _script(
        self, exchange: Exchange, family: Family, body: Json, request: ModelRequest
    ) -> None:
        _, wire = FORMATS[exchange.path]
        reply = answer(wire.conversation(body))
        if isinstance(reply, Failure):
            request.failed(reply.status, reply.message)
            await _refuse(exchange, family, reply.status, reply.message)
        elif body.get("stream") is True:
            asking = asking_for_usage(exchange.path, body)
            frames = wire.stream(reply, body if asking is None else parsed(asking))
            chunks = request.watch(200, _SSE, _paced(frames), hide_usage=asking is not None)
            await exchange.stream(200, _SSE_HEADERS, chunks)
        else:
            await asyncio.sleep(seconds(reply.parts))
            whole = wire.whole(reply, body)
            request.whole(whole)
            await exchange.answer(200, whole)


async def _refuse(exchange: Exchange, family: Family, status: int, message: str) -> None:
    await exchange.answer(status, error_body(family, status, message))


def _family(exchange: Exchange) -> Family:
    if exchange.path in FORMATS:
        return FORMATS[exchange.path][0]
    return "anthropic" if "anthropic-version" in exchange.headers else "openai"


def _logged(model: Any) -> str:
    return model if isinstance(model, str) and _LOGGED_MODEL.fullmatch(model) else "-"


async def _paced(frames: Iterable[Frame]) -> AsyncIterator[bytes]:
    for frame in frames:
        yield frame.data
        # also when it is 0: a long answer must not keep the loop from the other sessions
        await asyncio.sleep(frame.pause)
