"""The sidecar answers its api and nobody else."""

from __future__ import annotations

import hmac

from fastapi.responses import JSONResponse
from pydantic import SecretStr
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from contracts.errors import Unauthenticated

# Whether it is up may be asked by whoever watches it.
OPEN = ("GET", "/healthz")


class ApiOnly:
    """Lets nothing through without the api's secret, whatever it is for: around the router, so that
    no route, no unread body and no description of them comes before it."""

    def __init__(self, app: ASGIApp, secret: SecretStr) -> None:
        self._app = app
        self._wanted = f"Bearer {secret.get_secret_value()}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan" or self._may(scope):
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
            return
        error = Unauthenticated("the sidecar answers its api only")
        answer = JSONResponse({"error": error.body()}, status_code=error.status)
        await answer(scope, receive, send)

    def _may(self, scope: Scope) -> bool:
        if scope["type"] != "http":
            return False
        if (scope["method"], scope["path"]) == OPEN:
            return True
        given = Headers(scope=scope).get("authorization", "")
        return hmac.compare_digest(given.encode("utf-8", "surrogateescape"), self._wanted)
