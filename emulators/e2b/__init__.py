"""E2B on the wire: its API, envd, and the ports of sandboxes, at one URL. README.md says what is
emulated."""

from __future__ import annotations

import contextlib
import hmac
from collections.abc import AsyncIterator, Mapping
from typing import Any

from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from emulators.boxes import Boxes
from emulators.e2b.control import Control, refusal, refused
from emulators.e2b.edge import Edge, target
from emulators.e2b.sandboxes import Sandboxes
from emulators.e2b.templates import UPLOADS, Templates
from emulators.faults import Faults, Faulty
from emulators.http_server import http_server
from emulators.options import Options, Ready

API_KEY = "e2b_0123456789abcdef0123456789abcdef01234567"
MESSAGES = {
    401: "Invalid API key, please visit https://e2b.dev/docs/api-key for more information.",
    429: "Rate limit exceeded",
    503: "No capacity to place a sandbox right now",
}


@contextlib.asynccontextmanager
async def serve(options: Options, boxes: Boxes, faults: Faults) -> AsyncIterator[Ready]:
    """The emulator, for SDKs that are given its URL as `api_url` and as `sandbox_url`."""
    api_key = options.api_key or API_KEY
    sandboxes, templates = Sandboxes(boxes), Templates()
    control = Control(sandboxes, templates)
    api = Starlette(routes=[*control.routes(), *templates.routes()])
    edge = Edge(sandboxes, _keyed(api, api_key))
    app = Faulty(edge, faults, sandboxes, sandbox_of=_sandbox_of, refusal=_refusal)
    async with sandboxes.leasing():
        try:
            async with http_server(app, options.host, options.port) as url:
                yield Ready(url, url, {"api_key": api_key})
        finally:
            await control.close()


def _keyed(api: ASGIApp, api_key: str) -> ASGIApp:
    """The API, for who has the key."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        given = Headers(scope=scope).get("x-api-key", "")
        known = hmac.compare_digest(given.encode(), api_key.encode())
        if known or scope["path"].startswith(UPLOADS):
            await api(scope, receive, send)
        else:
            await refusal(401, MESSAGES[401])(scope, receive, send)

    return app


def _sandbox_of(scope: Scope) -> str | None:
    found = target(scope)
    if found is not None:
        return found[0]
    parts = scope["path"].removeprefix("/v2").split("/")
    return parts[2] if len(parts) > 2 and parts[1] == "sandboxes" else None


def _refusal(status: int) -> Mapping[str, Any]:
    return refused(status, MESSAGES[status])
