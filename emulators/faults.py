"""Faults on demand, the same for every emulator, and the two levers that a cloud pulls itself.

    POST   /_emulator/faults             {"match": {...}, "fault": "503", "times": 1, "seconds": 0}
    GET    /_emulator/faults             every fault with its `hits`, spent ones too
    DELETE /_emulator/faults             forget them all
    POST   /_emulator/expire/{sandbox}   its lease ends now; 404 when there is no such sandbox
    POST   /_emulator/delete/{sandbox}   it is deleted behind its owner's back; likewise

`match` narrows by `method`, `path` (a regular expression, searched), `rpc` (a gRPC method's name)
and `sandbox`; what it leaves out matches anything. The oldest fault that matches and is not spent
is met. `times` null means until it is deleted.

| fault | a request that meets it |
|---|---|
| 401, 429, 503 | is refused so, and not carried out |
| hang | gets no answer for `seconds` (0: for ever), then a reset; it is not carried out |
| reset | has its connection reset at once, and is not carried out |
| delay | is carried out after `seconds`, even if the client has left by then |
| lose | is carried out, and its connection is reset in place of the answer |
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal, Protocol

import pydantic
from pydantic import BaseModel, ConfigDict, Field
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from emulators.http_server import reset_connection

PREFIX = "/_emulator/"
Kind = Literal["401", "429", "503", "hang", "reset", "delay", "lose"]
REASONS = {401: "unauthorized", 429: "too many requests", 503: "service unavailable"}


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")


def _expression(text: str | None) -> str | None:
    if text is not None:
        try:
            re.compile(text)
        except re.error as error:
            raise ValueError(f"not a regular expression: {error}") from error
    return text


class Match(_Strict):
    """Which requests. A fault with an `rpc` matches no plain HTTP request, and one with a `method`
    or a `path` matches no gRPC call."""

    method: str | None = None
    path: Annotated[str | None, pydantic.AfterValidator(_expression)] = None
    rpc: str | None = None
    sandbox: str | None = None

    def http(self, method: str, path: str, sandbox: str | None) -> bool:
        return (
            self.rpc is None
            and (self.method is None or self.method.upper() == method)
            and (self.path is None or re.search(self.path, path) is not None)
            and self._concerns(sandbox)
        )

    def call(self, rpc: str, sandbox: str | None) -> bool:
        return (
            self.method is None
            and self.path is None
            and (self.rpc is None or self.rpc == rpc)
            and self._concerns(sandbox)
        )

    def _concerns(self, sandbox: str | None) -> bool:
        return self.sandbox is None or self.sandbox == sandbox


class Fault(_Strict):
    """A fault as it is asked for."""

    match: Match = Match()
    fault: Kind
    times: Annotated[int, Field(ge=1)] | None = 1
    seconds: Annotated[float, Field(ge=0)] = 0

    @property
    def status(self) -> int | None:
        """The HTTP status of a refusal; None for the other kinds."""
        return int(self.fault) if self.fault.isdigit() else None


class Faults:
    """The faults of one emulator, in the order in which they were asked for."""

    def __init__(self) -> None:
        self._hits: list[tuple[Fault, int]] = []

    def add(self, fault: Fault) -> None:
        self._hits.append((fault, 0))

    def clear(self) -> None:
        self._hits.clear()

    def all(self) -> list[tuple[Fault, int]]:
        """Every fault, and how often it was met."""
        return list(self._hits)

    def of_request(self, method: str, path: str, sandbox: str | None) -> Fault | None:
        """The fault that this HTTP request meets; asking counts as meeting it."""
        return self._take(lambda match: match.http(method, path, sandbox))

    def of_call(self, rpc: str, sandbox: str | None) -> Fault | None:
        """The same for a gRPC call."""
        return self._take(lambda match: match.call(rpc, sandbox))

    def _take(self, meets: Callable[[Match], bool]) -> Fault | None:
        for number, (fault, hits) in enumerate(self._hits):
            if (fault.times is None or hits < fault.times) and meets(fault.match):
                self._hits[number] = (fault, hits + 1)
                return fault
        return None


class Levers(Protocol):
    """What an emulator lets a test do to a sandbox. Both return False if there is none."""

    async def expire(self, sandbox: str) -> bool: ...

    async def delete(self, sandbox: str) -> bool: ...


def plain_refusal(status: int) -> Mapping[str, Any]:
    return {"code": status, "message": REASONS[status]}


class Faulty:
    """Goes around an emulator's ASGI app: serves PREFIX, and injects faults into everything else.
    Only under `http_server`.

    `sandbox_of` says which sandbox a request is about; `refusal` is the body of a 401, 429 or 503
    in the words of the emulated service.
    """

    def __init__(
        self,
        app: ASGIApp | None,
        faults: Faults,
        levers: Levers,
        *,
        sandbox_of: Callable[[Scope], str | None] = lambda scope: None,
        refusal: Callable[[int], Mapping[str, Any]] = plain_refusal,
    ) -> None:
        self._app = app or Starlette()
        self._faults = faults
        self._control = control(faults, levers)
        self._sandbox_of = sandbox_of
        self._refusal = refusal

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"].startswith(PREFIX):
            await self._control(scope, receive, send)
            return
        fault = None
        if scope["type"] == "http":
            fault = self._faults.of_request(scope["method"], scope["path"], self._sandbox_of(scope))
        if fault is None:
            await self._app(scope, receive, send)
        else:
            await self._meet(fault, scope, receive, send)

    async def _meet(self, fault: Fault, scope: Scope, receive: Receive, send: Send) -> None:
        if fault.status is not None:
            answer = JSONResponse(dict(self._refusal(fault.status)), fault.status)
            await answer(scope, receive, send)
            return
        if fault.fault == "hang":
            if await _left_within(fault.seconds or None, receive):
                return
        elif fault.fault == "delay":
            receive = await _read_ahead(receive)
            await asyncio.sleep(fault.seconds)
            await self._app(scope, receive, send)
            return
        elif fault.fault == "lose":
            await self._app(scope, receive, _swallow)
        await reset_connection(scope, receive)


async def _swallow(message: Message) -> None:
    """Where an answer goes that gets lost."""


async def _read_ahead(receive: Receive) -> Receive:
    """A `receive` that has the whole request, should the client leave meanwhile."""
    messages = []
    more = True
    while more:
        messages.append(await receive())
        more = messages[-1].get("more_body", False)

    async def again() -> Message:
        return messages.pop(0) if messages else await receive()

    return again


async def _left_within(seconds: float | None, receive: Receive) -> bool:
    """Whether the client has left before `seconds` were over."""
    try:
        async with asyncio.timeout(seconds):
            while (await receive())["type"] != "http.disconnect":
                pass
    except TimeoutError:
        return False
    return True


def control(faults: Faults, levers: Levers) -> ASGIApp:
    """The app behind PREFIX."""

    async def add(request: Request) -> Response:
        try:
            faults.add(Fault.model_validate_json(await request.body()))
        except pydantic.ValidationError as error:
            return JSONResponse({"message": json.loads(error.json(include_url=False))}, 400)
        return Response(status_code=204)

    async def show(request: Request) -> Response:
        return JSONResponse(
            [{**fault.model_dump(mode="json"), "hits": hits} for fault, hits in faults.all()]
        )

    async def clear(request: Request) -> Response:
        faults.clear()
        return Response(status_code=204)

    async def expire(request: Request) -> Response:
        found = await levers.expire(request.path_params["sandbox"])
        return Response(status_code=204 if found else 404)

    async def delete(request: Request) -> Response:
        found = await levers.delete(request.path_params["sandbox"])
        return Response(status_code=204 if found else 404)

    return Starlette(
        routes=[
            Route(f"{PREFIX}faults", add, methods=["POST"]),
            Route(f"{PREFIX}faults", show, methods=["GET"]),
            Route(f"{PREFIX}faults", clear, methods=["DELETE"]),
            Route(PREFIX + "expire/{sandbox}", expire, methods=["POST"]),
            Route(PREFIX + "delete/{sandbox}", delete, methods=["POST"]),
        ]
    )
