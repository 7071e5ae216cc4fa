"""E2B's API: sandboxes, made and asked about."""

from __future__ import annotations

import base64
import binascii
import datetime
import json
import math
from collections.abc import Mapping
from typing import Annotated, Any
from urllib.parse import unquote_plus

import pydantic
from pydantic import BaseModel, Field
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from emulators.boxes import BoxError
from emulators.e2b import envd
from emulators.e2b.idempotency import Answer, BadKey, Idempotency, InProgress, Mismatch
from emulators.e2b.sandboxes import (
    DEFAULT_SECONDS,
    LONGEST_SECONDS,
    NoSuchSandbox,
    Sandbox,
    Sandboxes,
    State,
    TooLong,
    Wish,
)
from emulators.e2b.templates import NoSuchTemplate, Templates

MOST_LISTED = 100
Seconds = Annotated[int, Field(ge=0, le=LONGEST_SECONDS)]


class _Network(BaseModel):
    public: Annotated[bool, Field(alias="allowPublicTraffic")] = True


class _AutoResume(BaseModel):
    enabled: bool = False


class _New(BaseModel):
    template: Annotated[str, Field(alias="templateID", min_length=1)]
    timeout: Seconds = DEFAULT_SECONDS
    metadata: dict[str, str] = {}
    env: Annotated[dict[str, str], Field(alias="envVars")] = {}
    auto_pause: Annotated[bool, Field(alias="autoPause")] = False
    memory: Annotated[bool, Field(alias="autoPauseMemory")] = True
    auto_resume: Annotated[_AutoResume, Field(alias="autoResume")] = _AutoResume()
    network: _Network = _Network()


class _Connect(BaseModel):
    timeout: Seconds = DEFAULT_SECONDS
    memory: bool | None = None


class _Pause(BaseModel):
    memory: bool | None = None


class _Timeout(BaseModel):
    timeout: int


class Control:
    """The routes, and the words in which they refuse."""

    def __init__(self, sandboxes: Sandboxes, templates: Templates) -> None:
        self._sandboxes = sandboxes
        self._templates = templates
        self._idempotency = Idempotency()

    def routes(self) -> list[Route]:
        return [
            Route("/v2/sandboxes", self.create, methods=["POST"]),
            Route("/v2/sandboxes", self.list, methods=["GET"]),
            Route("/v2/sandboxes/{id}/connect", self.connect, methods=["POST"]),
            Route("/sandboxes/{id}", self.get, methods=["GET"]),
            Route("/sandboxes/{id}", self.kill, methods=["DELETE"]),
            Route("/sandboxes/{id}/timeout", self.set_timeout, methods=["POST"]),
            Route("/sandboxes/{id}/pause", self.pause, methods=["POST"]),
        ]

    async def close(self) -> None:
        await self._idempotency.close()

    async def create(self, request: Request) -> Response:
        body = await request.body()
        key = request.headers.get("idempotency-key")
        try:
            if key is None:
                answer = await self._create(body)
            else:
                answer = await self._idempotency.once(key, body, lambda: self._create(body))
        except BadKey as error:
            return refusal(400, str(error))
        except InProgress as error:
            return refusal(409, str(error), "idempotency_in_progress")
        except Mismatch as error:
            return refusal(409, str(error), "idempotency_request_mismatch")
        return Response(answer.body, answer.status, media_type="application/json")

    async def _create(self, body: bytes) -> Answer:
        try:
            new = _New.model_validate_json(body)
            self._templates.check(new.template)
        except pydantic.ValidationError as error:
            return _answer(refused(400, f"Error when parsing request: {error}"))
        except NoSuchTemplate as error:
            return _answer(refused(404, str(error)))
        if not new.memory and (not new.auto_pause or new.auto_resume.enabled):
            return _answer(refused(400, "autoPauseMemory=false needs autoPause, and no autoResume"))
        wish = Wish(
            template=new.template,
            seconds=new.timeout,
            metadata=new.metadata,
            env=new.env,
            pauses=new.auto_pause,
            keeps_memory=new.memory,
            wakes=new.auto_resume.enabled,
            public=new.network.public,
        )
        try:
            sandbox = await self._sandboxes.create(wish)
        except BoxError as error:
            return _answer(refused(500, f"Failed to place sandbox: {error}"))
        return Answer(201, json.dumps(_shown(sandbox)).encode())

    async def list(self, request: Request) -> Response:
        query = request.query_params
        states = query.get("state", "running,paused").split(",")
        rising = query.get("order", "desc") == "asc"
        try:
            wanted = _filters(query.get("metadata", ""))
            limit = min(max(int(query.get("limit", MOST_LISTED)), 1), MOST_LISTED)
            after = _cursor(query.get("nextToken", ""))
        except ValueError as error:
            return refusal(400, f"Error parsing metadata or next token: {error}")
        found = [
            each
            for each in self._sandboxes.all()
            if each.state in states and wanted.items() <= each.wish.metadata.items()
        ]
        if rising:
            found.reverse()
        if after is not None:
            found = [each for each in found if _comes_after(each, after, rising=rising)]
        page, more = found[:limit], found[limit:]
        headers = {"X-Total-Running": str(sum(e.state is State.RUNNING for e in found))}
        if more:
            token = f"{page[-1].started_at!r}__{page[-1].id}"
            headers["X-Next-Token"] = base64.urlsafe_b64encode(token.encode()).decode()
        return JSONResponse([_detail(each) for each in page], headers=headers)

    async def get(self, request: Request) -> Response:
        try:
            return JSONResponse(_detail(self._sandboxes.find(request.path_params["id"])))
        except NoSuchSandbox as error:
            return _missing(error)

    async def kill(self, request: Request) -> Response:
        try:
            await self._sandboxes.kill(request.path_params["id"])
        except NoSuchSandbox as error:
            return _missing(error)
        return Response(status_code=204)

    async def connect(self, request: Request) -> Response:
        """A running one lives longer, never shorter; a paused one goes on."""
        try:
            asked = _Connect.model_validate_json(await request.body() or b"{}")
            async with self._sandboxes.change(request.path_params["id"]) as sandbox:
                if sandbox.state is State.RUNNING:
                    sandbox.extend(asked.timeout, shorten=False)
                    return JSONResponse(_shown(sandbox))
                await sandbox.resume(asked.timeout, memory=asked.memory is not False)
                return JSONResponse(_shown(sandbox), 201)
        except (pydantic.ValidationError, TooLong) as error:
            return refusal(400, str(error))
        except NoSuchSandbox as error:
            return _missing(error)

    async def set_timeout(self, request: Request) -> Response:
        """A paused one is not found: only what runs has a lease."""
        try:
            asked = _Timeout.model_validate_json(await request.body())
            async with self._sandboxes.change(request.path_params["id"]) as sandbox:
                sandbox.extend(asked.timeout, shorten=True)
        except (pydantic.ValidationError, TooLong) as error:
            return refusal(400, str(error))
        except NoSuchSandbox as error:
            return _missing(error)
        return Response(status_code=204)

    async def pause(self, request: Request) -> Response:
        try:
            asked = _Pause.model_validate_json(await request.body() or b"{}")
            async with self._sandboxes.change(request.path_params["id"]) as sandbox:
                if sandbox.state is State.PAUSED:
                    return refusal(
                        409, f"Error pausing sandbox - sandbox '{sandbox.id}' is already paused"
                    )
                await sandbox.pause(memory=asked.memory is not False)
        except pydantic.ValidationError as error:
            return refusal(400, str(error))
        except NoSuchSandbox as error:
            return _missing(error)
        return Response(status_code=204)


def refused(status: int, message: str, code: str = "") -> dict[str, Any]:
    return {"code": status, "message": message} | ({"error_code": code} if code else {})


def refusal(status: int, message: str, code: str = "") -> Response:
    return JSONResponse(refused(status, message, code), status)


def _answer(body: Mapping[str, Any]) -> Answer:
    return Answer(int(body["code"]), json.dumps(body).encode())


def _missing(error: NoSuchSandbox) -> Response:
    return refusal(404, f"Sandbox \"{error}\" doesn't exist or you don't have access to it")


def _shown(sandbox: Sandbox) -> dict[str, Any]:
    return {
        "templateID": sandbox.wish.template,
        "sandboxID": sandbox.id,
        "clientID": "emulator",
        "envdVersion": envd.VERSION,
        "envdAccessToken": sandbox.envd_token,
        "trafficAccessToken": sandbox.traffic_token,
        "domain": None,
    }


def _detail(sandbox: Sandbox) -> dict[str, Any]:
    wish = sandbox.wish
    return {
        "templateID": wish.template,
        "sandboxID": sandbox.id,
        "clientID": "emulator",
        "envdVersion": envd.VERSION,
        "envdAccessToken": sandbox.envd_token,
        "startedAt": _iso(sandbox.started_at),
        "endAt": _iso(sandbox.ends_at),
        "cpuCount": 2,
        "memoryMB": 2048,
        "diskSizeMB": 10240,
        "state": str(sandbox.state),
        "metadata": dict(wish.metadata),
        "network": {"allowPublicTraffic": wish.public},
        "lifecycle": {
            "autoResume": wish.wakes,
            "onTimeout": "pause" if wish.pauses else "kill",
        },
    }


def _iso(moment: float) -> str:
    return datetime.datetime.fromtimestamp(moment, datetime.UTC).isoformat()


def _filters(given: str) -> dict[str, str]:
    """`a=b&c=d`, whose parts are escaped once more. Raises: ValueError."""
    wanted = {}
    for pair in filter(None, unquote_plus(given).split("&")):
        name, separator, value = pair.partition("=")
        if not separator:
            raise ValueError("invalid key value pair in query")
        wanted[unquote_plus(name)] = unquote_plus(value)
    return wanted


def _comes_after(sandbox: Sandbox, after: tuple[float, str], *, rising: bool) -> bool:
    place = (sandbox.started_at, sandbox.id)
    return place > after if rising else place < after


def _cursor(token: str) -> tuple[float, str] | None:
    """Raises: ValueError."""
    if not token:
        return None
    try:
        moment, _, sandbox_id = base64.urlsafe_b64decode(token).decode().partition("__")
    except (binascii.Error, UnicodeDecodeError) as error:
        raise ValueError("Invalid next token") from error
    if not math.isfinite(float(moment)):
        raise ValueError("Invalid next token")
    return float(moment), sandbox_id
