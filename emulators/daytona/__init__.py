"""Daytona on the wire: the control plane, the toolbox, previews and notifications, on one port.
README.md says what is and what is not there."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route, WebSocketRoute
from starlette.types import ASGIApp, Receive, Scope, Send

from emulators.boxes import Boxes, BoxNotRunning
from emulators.daytona.api import Api
from emulators.daytona.clock import Clock
from emulators.daytona.notifications import Notifications
from emulators.daytona.preview import PREFIX, Previews, not_started
from emulators.daytona.sandboxes import Sandboxes
from emulators.daytona.snapshots import Snapshots
from emulators.daytona.toolbox import Toolbox
from emulators.daytona.wire import Refused, bearer, refusal
from emulators.faults import Faults, Faulty
from emulators.http_server import http_server
from emulators.options import Options, Ready

API_KEY = "dtn_emulated"
SNAPSHOT = "holdfast-sandbox"


@contextlib.asynccontextmanager
async def serve(options: Options, boxes: Boxes, faults: Faults) -> AsyncIterator[Ready]:
    key = options.api_key or API_KEY
    clock = Clock()
    notifications = Notifications(key)
    sandboxes = Sandboxes(boxes, clock, notifications)
    snapshots = Snapshots(clock, SNAPSHOT)
    previews = Previews(sandboxes, clock, key)

    async def pass_time(request: Request) -> Response:
        await sandboxes.pass_time(float((await request.json())["seconds"]))
        return Response(status_code=204)

    async def set_quota(request: Request) -> Response:
        sandboxes.most = (await request.json())["cpu"]
        return Response(status_code=204)

    async def break_down(request: Request) -> Response:
        found = await sandboxes.break_down(
            request.path_params["sandbox"], recoverable=(await request.json())["recoverable"]
        )
        return Response(status_code=204 if found else 404)

    app = Starlette(
        routes=[
            WebSocketRoute("/api/socket.io/", notifications.serve),
            *Api(sandboxes, snapshots, previews, SNAPSHOT).routes(),
            *snapshots.routes(),
            *Toolbox(sandboxes, key).routes(),
            *previews.routes(),
            Route("/clock", pass_time, methods=["POST"]),
            Route("/quota", set_quota, methods=["POST"]),
            Route("/break/{sandbox}", break_down, methods=["POST"]),
        ],
        middleware=[Middleware(_Keyed, key=key)],
        exception_handlers={Refused: _refused, BoxNotRunning: _not_running},
    )

    async def routed(scope: Scope, receive: Receive, send: Send) -> None:
        preview = scope["type"] == "http" and scope["path"].startswith(PREFIX)
        await (previews if preview else app)(scope, receive, send)

    faulty = Faulty(routed, faults, sandboxes, sandbox_of=_sandbox_of, refusal=refusal)
    async with (
        sandboxes.open(),
        http_server(faulty, options.host, options.port, ws="wsproto") as url,
    ):
        sandboxes.toolbox_url = f"{url}/toolbox"
        snapshots.logs_url = previews.base_url = url
        more = {"api_key": key, "snapshot": SNAPSHOT}
        yield Ready(url=f"{url}/api", control=url, more=more)


class _Keyed:
    """The control plane is for who has the key."""

    def __init__(self, app: ASGIApp, key: str) -> None:
        self._app = app
        self._key = key

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"].startswith("/api/"):
            request = Request(scope)
            if bearer(request.headers.get("authorization")) != self._key:
                refused = Refused(401, "Invalid credentials")
                await JSONResponse(refused.body(), 401)(scope, receive, send)
                return
        await self._app(scope, receive, send)


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, Refused)
    return JSONResponse(error.body(), error.status)


async def _not_running(request: Request, error: Exception) -> Response:
    return await _refused(request, not_started())


def _sandbox_of(scope: Scope) -> str | None:
    parts = scope["path"].split("/")
    if len(parts) > 3 and parts[1:3] == ["api", "sandbox"]:
        return str(parts[3])
    if len(parts) > 2 and parts[1] == "toolbox":
        return str(parts[2])
    if len(parts) > 2 and parts[1] == "preview":
        return str(parts[2].partition("-")[2])
    return None
