"""The port proxy, served."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from starlette.responses import PlainTextResponse
from starlette.types import Receive, Scope, Send

from emulators.port_proxy import NoAnswer, forward


def proxy(
    connect: Callable[[], Awaitable[tuple[asyncio.StreamReader, asyncio.StreamWriter]]],
) -> Callable[[Scope, Receive, Send], Awaitable[None]]:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await forward(
                scope,
                receive,
                send,
                connect,
                target=b"/rewritten?a=b" if scope["path"] == "/rewrite" else None,
                dropped=(b"x-api-key",),
                added=((b"x-added", b"yes"),),
            )
        except (ConnectionRefusedError, NoAnswer) as error:
            answer = PlainTextResponse(type(error).__name__, 502)
            await answer(scope, receive, send)

    return app
