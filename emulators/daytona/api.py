"""The control plane: /api/sandbox."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from emulators.daytona.preview import Previews
from emulators.daytona.sandboxes import Sandbox, Sandboxes
from emulators.daytona.snapshots import Snapshots
from emulators.daytona.wire import Refused

PAGE = 100
MOST_PER_PAGE = 200
Change = Callable[[Sandbox], None]


class Api:
    def __init__(
        self, sandboxes: Sandboxes, snapshots: Snapshots, previews: Previews, default_snapshot: str
    ) -> None:
        self._sandboxes = sandboxes
        self._snapshots = snapshots
        self._previews = previews
        self._default_snapshot = default_snapshot

    def routes(self) -> list[Route]:
        one = "/api/sandbox/{sandbox}"
        port = one + "/ports/{port:int}"
        changes: dict[str, Change] = {
            "start": self._sandboxes.start,
            "stop": self._sandboxes.stop,
            "archive": self._sandboxes.archive,
            "pause": _unsupported,
            "recover": self._sandboxes.recover,
        }
        return [
            Route("/api/sandbox", self._create, methods=["POST"]),
            Route("/api/sandbox", self._list, methods=["GET"]),
            Route(one, self._get, methods=["GET"]),
            Route(one, self._changed_by(self._sandboxes.destroy), methods=["DELETE"]),
            *(
                Route(f"{one}/{name}", self._changed_by(change), methods=["POST"])
                for name, change in changes.items()
            ),
            Route(f"{one}/labels", self._label, methods=["PUT"]),
            Route(f"{one}/last-activity", self._refresh, methods=["POST"]),
            Route(f"{one}/toolbox-proxy-url", self._toolbox_url, methods=["GET"]),
            Route(one + "/public/{value}", self._publish, methods=["POST"]),
            Route(one + "/autostop/{minutes:int}", self._auto_stop, methods=["POST"]),
            Route(one + "/autoarchive/{minutes:int}", self._auto_archive, methods=["POST"]),
            Route(one + "/autodelete/{minutes}", self._auto_delete, methods=["POST"]),
            Route(one + "/ttl/{minutes:int}", self._live_for, methods=["POST"]),
            Route(f"{port}/preview-url", self._preview, methods=["GET"]),
            Route(f"{port}/signed-preview-url", self._signed_preview, methods=["GET"]),
            Route(port + "/signed-preview-url/{token}/expire", self._unsign, methods=["POST"]),
        ]

    def _found(self, request: Request) -> Sandbox:
        return self._sandboxes.find(request.path_params["sandbox"])

    def _shown(self, sandbox: Sandbox) -> Response:
        return JSONResponse(self._sandboxes.shown(sandbox))

    def _changed_by(self, change: Change) -> Callable[[Request], Any]:
        async def changed(request: Request) -> Response:
            sandbox = self._found(request)
            change(sandbox)
            return self._shown(sandbox)

        return changed

    async def _create(self, request: Request) -> Response:
        body = await request.json()
        if body.get("buildInfo"):
            raise Refused(400, "This emulator makes sandboxes of snapshots only")
        snapshot = self._snapshots.usable(body.get("snapshot") or self._default_snapshot)
        return self._shown(self._sandboxes.create(body, snapshot))

    async def _list(self, request: Request) -> Response:
        """Newest first; the cursor is how many have been shown."""
        query = request.query_params
        try:
            wanted = json.loads(query.get("labels") or "{}").items()
        except ValueError as error:
            raise Refused(400, "Invalid labels JSON format") from error
        states = query.getlist("states")
        found = [
            self._sandboxes.shown(sandbox)
            for sandbox in self._sandboxes.all()
            if wanted <= sandbox.labels.items()
            and sandbox.name.startswith(query.get("name") or "")
            and sandbox.id.startswith(query.get("id") or "")
            and (not states or sandbox.state in states)
        ]
        start = int(query.get("cursor") or 0)
        end = start + min(int(query.get("limit") or PAGE), MOST_PER_PAGE)
        more = str(end) if end < len(found) else None
        return JSONResponse({"items": found[start:end], "nextCursor": more})

    async def _get(self, request: Request) -> Response:
        return self._shown(self._found(request))

    async def _label(self, request: Request) -> Response:
        sandbox = self._found(request)
        sandbox.labels = dict((await request.json())["labels"])
        return JSONResponse({"labels": sandbox.labels})

    async def _refresh(self, request: Request) -> Response:
        self._sandboxes.active(self._found(request))
        return Response(status_code=201)

    async def _toolbox_url(self, request: Request) -> Response:
        self._found(request)
        return JSONResponse({"url": self._sandboxes.toolbox_url})

    async def _publish(self, request: Request) -> Response:
        sandbox = self._found(request)
        sandbox.public = request.path_params["value"] == "true"
        return self._shown(sandbox)

    async def _auto_stop(self, request: Request) -> Response:
        sandbox = self._found(request)
        sandbox.auto_stop = request.path_params["minutes"]
        return self._shown(sandbox)

    async def _auto_archive(self, request: Request) -> Response:
        sandbox = self._found(request)
        sandbox.auto_archive = request.path_params["minutes"]
        return self._shown(sandbox)

    async def _auto_delete(self, request: Request) -> Response:
        sandbox = self._found(request)
        sandbox.auto_delete = int(request.path_params["minutes"])
        return self._shown(sandbox)

    async def _live_for(self, request: Request) -> Response:
        sandbox = self._found(request)
        self._sandboxes.live_for(sandbox, request.path_params["minutes"])
        return self._shown(sandbox)

    async def _preview(self, request: Request) -> Response:
        sandbox = self._found(request)
        port = _port(request)
        url = self._previews.url(port, sandbox.id)
        return JSONResponse({"sandboxId": sandbox.id, "url": url, "token": sandbox.token})

    async def _signed_preview(self, request: Request) -> Response:
        sandbox = self._found(request)
        port = _port(request)
        seconds = int(float(request.query_params.get("expiresInSeconds") or 60))
        if not 1 <= seconds <= 24 * 3600:
            raise Refused(400, "expiresInSeconds must be between 1 second and 24 hours")
        token = self._previews.sign(sandbox.id, port, seconds)
        url = self._previews.url(port, token)
        shown = {"sandboxId": sandbox.id, "port": port, "token": token, "url": url}
        return JSONResponse(shown)

    async def _unsign(self, request: Request) -> Response:
        self._found(request)
        self._previews.unsign(request.path_params["token"])
        return Response()


def _port(request: Request) -> int:
    port: int = request.path_params["port"]
    if not 1 <= port <= 65535:
        raise Refused(400, "Invalid port")
    return port


def _unsupported(sandbox: Sandbox) -> None:
    raise Refused(400, "Sandbox class container does not support pausing")
