"""What a session's socket serves: the model APIs, real or scripted."""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import AsyncIterator, Iterable, Mapping
from typing import Any

from starlette.types import Receive, Scope, Send

from sidecar.gateway.exchange import BadBody, Exchange, HungUp, decoded, parsed
from sidecar.gateway.families import (
    COUNT_TOKENS,
    FORMATS,
    MODELS,
    Family,
    error_body,
    scripted_models,
)
from sidecar.gateway.scripted.conversation import Json
from sidecar.gateway.scripted.model import answer
from sidecar.gateway.scripted.protocol import Frame
from sidecar.gateway.scripted.reply import Failure, seconds
from sidecar.gateway.upstream import Upstream

logger = logging.getLogger(__name__)

# The name comes from a sandbox: nothing in it may forge a log line.
_LOGGED_MODEL = re.compile(r"[\w.:/@\[\]-]{1,100}")
_SSE_HEADERS = [(b"content-type", b"text/event-stream"), (b"cache-control", b"no-cache")]


class SessionApp:
    """An ASGI app for one session: whose request it is follows from the socket it came by."""

    def __init__(self, session_id: str, upstreams: Mapping[Family, Upstream]) -> None:
        self._session_id = session_id
        self._upstreams = upstreams

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
        if family in self._upstreams:
            # also what we cannot read: that is between the harness and its vendor
            await self._upstreams[family].relay(exchange, raw)
        elif fault:
            await _refuse(exchange, family, fault.status, fault.message)
        else:
            await self._script(exchange, family, body)

    async def _script(self, exchange: Exchange, family: Family, body: Json) -> None:
        _, wire = FORMATS[exchange.path]
        if exchange.path == COUNT_TOKENS:
            await exchange.answer(200, {"input_tokens": wire.tokens(body)})
            return
        reply = answer(wire.conversation(body))
        if isinstance(reply, Failure):
            await _refuse(exchange, family, reply.status, reply.message)
        elif body.get("stream") is True:
            await exchange.stream(200, _SSE_HEADERS, _paced(wire.stream(reply, body)))
        else:
            await asyncio.sleep(seconds(reply.parts))
            await exchange.answer(200, wire.whole(reply, body))


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
