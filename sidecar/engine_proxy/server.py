"""The proxy's own end: HTTP on a unix socket."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from aiohttp import web

from contracts.errors import EngineCallRefused, HoldfastError
from sidecar.engine_proxy.boxes import BoxDirectories
from sidecar.engine_proxy.calls import Calls
from sidecar.engine_proxy.engine import Engine
from sidecar.engine_proxy.settings import Settings
from sidecar.engine_proxy.strict_json import shown
from sidecar.sockets import private_socket

logger = logging.getLogger(__name__)

BODY_BYTES = 64 * 1024
BODY_SECONDS = 10
# What a refused client still sends is read so long, so that it gets to read why.
LINGER_SECONDS = 1
STOP_SECONDS = 5


@asynccontextmanager
async def serving(settings: Settings) -> AsyncIterator[None]:
    """Serve at the socket that the settings name, until the block is left."""
    settings.engine_proxy_listen.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    settings.engine_proxy_listen.unlink(missing_ok=True)
    listening = private_socket(settings.engine_proxy_listen)
    if settings.engine_proxy_group is not None:
        os.chown(settings.engine_proxy_listen, -1, settings.engine_proxy_group)
        settings.engine_proxy_listen.chmod(0o660)
    async with Engine.at(settings.engine_socket) as engine:
        boxes = BoxDirectories(settings.engine_proxy_boxes)
        calls = Calls(settings.policy(), engine, boxes)

        async def handle(request: web.BaseRequest) -> web.StreamResponse:
            return await _answer(request, calls)

        # the low-level server: a router would judge, and clean, the path before we do
        runner = web.ServerRunner(
            web.Server(
                handle, access_log=None, auto_decompress=False, lingering_time=LINGER_SECONDS
            ),
            shutdown_timeout=STOP_SECONDS,
        )
        await runner.setup()
        try:
            await web.SockSite(runner, listening).start()
            yield
        finally:
            await runner.cleanup()


async def _answer(request: web.BaseRequest, calls: Calls) -> web.Response:
    try:
        if "Upgrade" in request.headers:
            raise EngineCallRefused("an upgrade of the connection is not allowed")
        answer = await calls.answer(request.method, request.raw_path, await _body(request))
    except HoldfastError as error:
        verb = "refused" if isinstance(error, EngineCallRefused) else "failed"
        logger.warning("%s %s %s: %s", verb, request.method, _path(request), error.message)
        refusal = web.json_response({"message": error.message}, status=error.status)
        refusal.force_close()  # nothing that was sent behind it is read
        return refusal
    return web.Response(status=answer.status, headers=answer.headers, body=answer.body)


async def _body(request: web.BaseRequest) -> bytes:
    """Raises: EngineCallRefused when it is too long, or too long on its way."""
    read = bytearray()
    try:
        async with asyncio.timeout(BODY_SECONDS):
            async for chunk in request.content.iter_any():
                read += chunk
                if len(read) > BODY_BYTES:
                    raise EngineCallRefused(f"the body is longer than {BODY_BYTES} bytes")
    except TimeoutError:
        raise EngineCallRefused(f"the body did not come within {BODY_SECONDS} s") from None
    return bytes(read)


def _path(request: web.BaseRequest) -> str:
    return shown(request.raw_path.partition("?")[0])
