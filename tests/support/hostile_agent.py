"""An agent server that means harm: it speaks sandbox-agent's wire and says on it what it likes."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, cast
from uuid import uuid4

from aiohttp import web

from contracts.bodies import RunRequest
from contracts.errors import HoldfastError
from contracts.redaction import Redactor
from sidecar.harnesses import agent_server
from sidecar.harnesses import registry as harnesses
from sidecar.harnesses.acp import AcpConnection
from sidecar.harnesses.base import Choice
from sidecar.providers.base import Endpoint, Sandbox, SandboxProcess
from sidecar.runs.bounds import Bounds, Flow
from sidecar.runs.conversation import Conversation
from sidecar.runs.journal import Journal
from sidecar.runs.permissions import Permissions
from sidecar.runs.progress import Talk
from sidecar.workspace.engine import DurableSandbox

WITHIN = 60

SESSION = "s"
REQUEST = "aaaaaaaa-1"


class HostileAgent:
    """What it says goes out by `say` and `raw`; `answer_post` is its answer to every POST."""

    def __init__(self) -> None:
        self.number = 0
        self.out: asyncio.Queue[bytes | None] = asyncio.Queue()
        self.asked: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self.responses: list[dict[str, Any]] = []
        self.streams = 0
        self.answer_post: Callable[[], web.StreamResponse] | None = None
        self.stream_headers: dict[str, str] = {}
        self.flooding: Callable[[], bytes] | None = None
        self.sent = 0

    def say(self, message: Any) -> None:
        self.raw(json.dumps(message).encode())

    def update(self, session: str = SESSION, **update: Any) -> None:
        self.say(notification(session, **update))

    def raw(self, data: bytes, number: bytes | None = None) -> None:
        self.number += 1
        at = str(self.number).encode() if number is None else number
        self.out.put_nowait(b"id: %b\ndata: %b\n\n" % (at, data))

    def end(self, **result: Any) -> None:
        """Answer the prompt."""
        self.say({"jsonrpc": "2.0", "id": REQUEST, "result": {"stopReason": "end_turn", **result}})

    async def post(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        if "method" in body:
            self.asked.put_nowait(body)
        else:
            self.responses.append(body)
            return web.Response(status=202)
        if self.answer_post is not None:
            return self.answer_post()
        await asyncio.Event().wait()
        raise AssertionError

    async def stream(self, request: web.Request) -> web.StreamResponse:
        self.streams += 1
        headers = {"content-type": "text/event-stream", **self.stream_headers}
        response = web.StreamResponse(headers=headers)
        await response.prepare(request)
        with contextlib.suppress(ConnectionError):
            while (data := await self.out.get()) is not None:
                await response.write(data)
                while self.flooding is not None:
                    await response.write(self.flooding())
                    self.sent += 1
        return response

    @contextlib.asynccontextmanager
    async def served(self, path: Path) -> AsyncIterator[None]:
        app = web.Application()
        app.router.add_post("/v1/acp/srv", self.post)
        app.router.add_get("/v1/acp/srv", self.stream)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        await web.UnixSite(runner, str(path)).start()
        try:
            yield
        finally:
            self.flooding = None
            self.out.put_nowait(None)
            await runner.cleanup()


class HostileSandbox:
    """As much of a sandbox as a conversation needs: where its agent server is, that it lives."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self.killed = 0

    def endpoint(self, port: int) -> Endpoint:
        return self._endpoint

    async def processes(self) -> list[SandboxProcess]:
        return [SandboxProcess("3:1", 3, ("sleep", "/usr/bin/sleep"))]

    async def kill(self, processes: Sequence[SandboxProcess]) -> None:
        self.killed += 1


class Hearing:
    """A turn whose prompt was sent already, heard by all that the sidecar hears one with."""

    def __init__(
        self,
        directory: Path,
        path: Path,
        *,
        bounds: Bounds | None = None,
        permissions: str = "auto",
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
        secrets: Sequence[str] = (),
    ) -> None:
        request = RunRequest(
            turn_id=uuid4(),
            session_id=uuid4(),
            epoch=1,
            prompt="go",
            harness="pi",
            provider="local",
            permissions=cast(Any, permissions),
        )
        self.journal = Journal.create(directory, request)
        self.journal.redactor = Redactor(secrets)
        self.flow = Flow(self.journal, bounds, sleep)
        self.permissions = Permissions(self.journal, self.flow)
        self.sandbox = HostileSandbox(Endpoint("http://sandbox", socket=str(path)))
        self.cancelled = asyncio.Event()
        self.conversation = Conversation(
            cast(DurableSandbox, self.sandbox),
            harnesses.get("pi"),
            Choice(),
            self.journal,
            self.permissions,
            self.flow,
        )

    async def heard(self) -> str | HoldfastError:
        """Why the prompt stopped, or the error that the turn ends with."""
        talk = Talk("srv", SESSION, REQUEST, 0, tuple(await self.sandbox.processes()))
        try:
            async with asyncio.timeout(WITHIN), self.conversation.rejoin(talk) as answer:
                return await self.conversation.hear_out(answer, self.cancelled, certain=True)
        except HoldfastError as error:
            return error

    def events(self) -> list[dict[str, Any]]:
        return [entry.event for entry in self.journal.entries()]

    @property
    def connection(self) -> AcpConnection:
        return self.conversation._acp


@contextlib.asynccontextmanager
async def connected(endpoint: Endpoint) -> AsyncIterator[AcpConnection]:
    """By the client that the sidecar uses."""
    sandbox = cast(Sandbox, HostileSandbox(endpoint))
    async with agent_server.connect(sandbox) as http:
        yield AcpConnection(http, "srv", "pi", session=SESSION)


def notification(session: str = SESSION, **update: Any) -> dict[str, Any]:
    params = {"sessionId": session, "update": update}
    return {"jsonrpc": "2.0", "method": "session/update", "params": params}


def text(chunk: str) -> dict[str, Any]:
    return {"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": chunk}}
