"""The account's snapshots. Nothing is built: a sandbox is of the emulator's own image, whatever
snapshot it asks for, and that snapshot must be there and active."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from emulators.daytona.clock import Clock
from emulators.daytona.wire import ORGANIZATION, Refused, instant

# Long enough for an SDK that polls once a second to see it.
BUILD_SECONDS = 0.5


@dataclass
class Snapshot:
    id: str
    name: str
    general: bool
    image: str | None
    dockerfile: str | None
    entrypoint: list[str] | None
    created_at: float
    ready_at: float  # by the event loop's clock
    active: bool = True

    @property
    def state(self) -> str:
        if asyncio.get_running_loop().time() < self.ready_at:
            return "building" if self.dockerfile else "pulling"
        if self.dockerfile is not None and "FROM " not in self.dockerfile:
            return "build_failed"
        return "active" if self.active else "inactive"


class Snapshots:
    def __init__(self, clock: Clock, general: str) -> None:
        self._clock = clock
        self._all: dict[str, Snapshot] = {}
        self._add(general, general=True, image=general)
        self.logs_url = ""

    def find(self, id_or_name: str) -> Snapshot:
        """Raises: Refused 404."""
        for snapshot in self._all.values():
            if id_or_name in (snapshot.id, snapshot.name):
                return snapshot
        raise Refused(404, f"Snapshot {id_or_name} not found")

    def usable(self, id_or_name: str) -> str:
        """Raises: Refused 400, for one that no sandbox can be made of."""
        try:
            found = self.find(id_or_name)
        except Refused as refused:
            raise Refused(
                400, f"Snapshot {id_or_name} not found. Did you add it through the Dashboard?"
            ) from refused
        if found.state != "active":
            raise Refused(400, f"Snapshot {id_or_name} is {found.state}")
        return found.name

    def routes(self) -> list[Route]:
        return [
            Route("/api/snapshots", self._list, methods=["GET"]),
            Route("/api/snapshots", self._create, methods=["POST"]),
            Route("/api/snapshots/{id}", self._get, methods=["GET"]),
            Route("/api/snapshots/{id}", self._delete, methods=["DELETE"]),
            Route("/api/snapshots/{id}/activate", self._activate, methods=["POST"]),
            Route("/api/snapshots/{id}/deactivate", self._deactivate, methods=["POST"]),
            Route("/api/snapshots/{id}/build-logs-url", self._logs_url, methods=["GET"]),
            Route("/snapshots/{id}/build-logs", self._logs, methods=["GET"]),
        ]

    def _add(
        self,
        name: str,
        *,
        general: bool = False,
        image: str | None = None,
        dockerfile: str | None = None,
        entrypoint: list[str] | None = None,
        build: float = 0,
    ) -> Snapshot:
        ready_at = asyncio.get_running_loop().time() + build
        snapshot = Snapshot(
            str(uuid.uuid4()),
            name,
            general,
            image,
            dockerfile,
            entrypoint,
            self._clock.now(),
            ready_at,
        )
        self._all[snapshot.id] = snapshot
        return snapshot

    async def _list(self, request: Request) -> Response:
        page = int(request.query_params.get("page") or 1)
        limit = int(request.query_params.get("limit") or 100)
        every = list(self._all.values())
        shown = every[(page - 1) * limit : page * limit]
        return JSONResponse(
            {
                "items": [_shown(snapshot) for snapshot in shown],
                "total": len(every),
                "page": page,
                "totalPages": -(-len(every) // limit),
            }
        )

    async def _create(self, request: Request) -> Response:
        body: Mapping[str, Any] = await request.json()
        if any(body["name"] == snapshot.name for snapshot in self._all.values()):
            raise Refused(409, f'Snapshot with name "{body["name"]}" already exists')
        build = body.get("buildInfo") or {}
        snapshot = self._add(
            body["name"],
            image=body.get("imageName"),
            dockerfile=build.get("dockerfileContent"),
            entrypoint=body.get("entrypoint"),
            build=BUILD_SECONDS,
        )
        return JSONResponse(_shown(snapshot))

    async def _get(self, request: Request) -> Response:
        return JSONResponse(_shown(self.find(request.path_params["id"])))

    async def _delete(self, request: Request) -> Response:
        del self._all[self.find(request.path_params["id"]).id]
        return Response()

    async def _activate(self, request: Request) -> Response:
        return self._switch(request, True)

    async def _deactivate(self, request: Request) -> Response:
        return self._switch(request, False)

    def _switch(self, request: Request, active: bool) -> Response:
        snapshot = self.find(request.path_params["id"])
        snapshot.active = active
        return JSONResponse(_shown(snapshot))

    async def _logs_url(self, request: Request) -> Response:
        snapshot = self.find(request.path_params["id"])
        return JSONResponse({"url": f"{self.logs_url}/snapshots/{snapshot.id}/build-logs"})

    async def _logs(self, request: Request) -> Response:
        lines = (self.find(request.path_params["id"]).dockerfile or "").splitlines()
        steps = (f"Step {number}: {line}\n" for number, line in enumerate(lines, 1))
        return StreamingResponse(steps, media_type="text/plain")


def _shown(snapshot: Snapshot) -> dict[str, Any]:
    at = instant(snapshot.created_at)
    build = None
    if snapshot.dockerfile is not None:
        build = {
            "dockerfileContent": snapshot.dockerfile,
            "contextHashes": [],
            "createdAt": at,
            "updatedAt": at,
            "snapshotRef": snapshot.name,
        }
    failed = snapshot.state == "build_failed"
    return {
        "id": snapshot.id,
        "organizationId": ORGANIZATION,
        "general": snapshot.general,
        "name": snapshot.name,
        "imageName": snapshot.image,
        "state": snapshot.state,
        "size": None,
        "entrypoint": snapshot.entrypoint,
        "cpu": 1,
        "gpu": 0,
        "mem": 1,
        "disk": 3,
        "errorReason": "no build stage in current context" if failed else None,
        "createdAt": at,
        "updatedAt": at,
        "lastUsedAt": None,
        "buildInfo": build,
        "sourceSandboxId": None,
        "sandboxClass": "container",
    }
