"""A real HTTP server that answers like the api and fails on the wire as a test asks it to."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Literal
from uuid import UUID, uuid4

import uvicorn
from pydantic import BaseModel
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from contracts import bodies, errors, events

TOKEN = "wire-token-7f3a"
START_SECONDS = 10
# A follower that nobody takes away; no test waits that long.
FOLLOW_SECONDS = 30


@dataclass(frozen=True)
class Fault:
    """What one connection to `/events` does: serves `serve` events, then this."""

    then: Literal["cut", "close", "junk", "error", "refuse", "gap", "again"]
    serve: int = 0
    torn: bytes = b""
    error: errors.HoldfastError | None = None


class CutError(Exception):
    """Ends a response in the middle, as a crashed server would."""


@dataclass
class FakeApi:
    url: str = ""
    sessions: dict[UUID, bodies.Session] = field(default_factory=dict)
    transcripts: dict[UUID, list[events.Event]] = field(default_factory=dict)
    turns: dict[UUID, bodies.Turn] = field(default_factory=dict)
    files: dict[str, bytes] = field(default_factory=dict)
    live_files: dict[str, bytes] = field(default_factory=dict)
    sandboxes: list[bodies.SandboxBody] = field(default_factory=list)
    leaks: list[bodies.Leak] = field(default_factory=list)
    manifests: dict[UUID, bytes] = field(default_factory=dict)
    # The next turn waits, until it was looked at so often.
    queue_next: bool = False
    looks_at_queued: int = 0
    begins_after: int | None = None
    capabilities: bodies.Capabilities | None = None
    # What the next turn does; events get their place in the transcript by `append`.
    script: list[events.Event] = field(default_factory=list)
    # For a test that plays the whole stack: does a turn, and says what it caused.
    on_turn: Callable[[bodies.Turn], Awaitable[list[events.Event]]] | None = None
    on_kill: Callable[[], bodies.Killed] | None = None
    on_delete: Callable[[UUID], Awaitable[None]] | None = None
    faults: list[Fault] = field(default_factory=list)
    # Route name -> error or bytes to answer in place of the real answer.
    answers: dict[str, errors.HoldfastError | Response] = field(default_factory=dict)
    page: int | None = None
    cut_files_after: int | None = None
    requests: list[str] = field(default_factory=list)
    tokens: set[str] = field(default_factory=set)
    closing: bool = False

    def reset(self) -> None:
        """Everything but the address as it was at the start."""
        for name, fresh in vars(FakeApi(url=self.url)).items():
            setattr(self, name, fresh)

    def add_session(self, session_id: UUID | None = None, **changes: Any) -> bodies.Session:
        now = datetime.now(UTC)
        values: dict[str, Any] = {
            "id": session_id or uuid4(),
            "title": "",
            "harness": "claude",
            "provider": "local",
            "model": None,
            "reasoning": None,
            "permissions": "auto",
            "archived": False,
            "created_at": now,
            "updated_at": now,
            "last_seq": 0,
            "running_turn": None,
        }
        session = bodies.Session(**(values | changes))
        self.sessions[session.id] = session
        self.transcripts[session.id] = []
        return session

    def append(self, session_id: UUID, *new: events.Event, turn_id: UUID | None = None) -> None:
        transcript = self.transcripts[session_id]
        for event in new:
            place = {"seq": len(transcript) + 1, "session_id": session_id}
            if turn_id is not None:
                place["turn_id"] = turn_id
            transcript.append(event.model_copy(update=place))

    def asked(self, part: str) -> list[str]:
        return [each for each in self.requests if part in each]

    def start_turn(self, session_id: UUID, body: bodies.TurnCreate) -> bodies.Turn:
        first = len(self.transcripts[session_id]) + 1
        session = self.sessions[session_id]
        turn = bodies.Turn(
            id=uuid4(),
            session_id=session_id,
            state="running",
            prompt=body.prompt,
            harness=body.harness or session.harness,
            provider=body.provider or session.provider,
            model=body.model,
            reasoning=body.reasoning,
            permissions="auto",
            created_at=datetime.now(UTC),
            ended_at=None,
            first_seq=first,
            last_seq=first,
            error=None,
            receipt=None,
        )
        if self.queue_next and body.queue:
            turn = turn.model_copy(update={"state": "queued", "last_seq": first - 1})
        self.turns[turn.id] = turn
        return turn if turn.state == "queued" else self.begin(turn)

    def begin(self, turn: bodies.Turn) -> bodies.Turn:
        """Let a turn run, behind whatever the transcript has by now."""
        first = len(self.transcripts[turn.session_id]) + 1
        turn = turn.model_copy(update={"state": "running", "first_seq": first, "last_seq": first})
        self.turns[turn.id] = turn
        started = events.TurnStarted(harness=turn.harness, provider=turn.provider)
        said = events.Message(role="user", text=turn.prompt)
        self.append(turn.session_id, started, said, *self.script, turn_id=turn.id)
        return turn

    def end_queued(self, turn: bodies.Turn) -> bodies.Turn:
        ended = {"state": "cancelled", "ended_at": datetime.now(UTC)}
        self.turns[turn.id] = turn.model_copy(update=ended)
        return self.turns[turn.id]

    async def stream(self, session_id: UUID, after: int, follow: bool) -> AsyncIterator[bytes]:
        fault = self.faults.pop(0) if self.faults else None
        sent = 0
        deadline = time.monotonic() + FOLLOW_SECONDS
        at = 0 if fault is not None and fault.then == "again" else after
        while True:
            # Gone when a later test has begun.
            for event in self.transcripts.get(session_id, [])[at:]:
                if fault is not None and fault.then != "again" and sent >= fault.serve:
                    break
                if self.page is not None and sent >= self.page:
                    return
                yield events.encode(event)
                at, sent = at + 1, sent + 1
            if fault is not None and fault.then != "again":
                async for rest in self._fail(fault, session_id, at):
                    yield rest
                return
            known = session_id in self.transcripts
            if not follow or self.closing or not known or time.monotonic() > deadline:
                return
            yield b"\n"
            await asyncio.sleep(0.01)

    async def _fail(self, fault: Fault, session_id: UUID, at: int) -> AsyncIterator[bytes]:
        if fault.torn:
            yield fault.torn
        if fault.then == "cut":
            raise CutError
        if fault.then == "junk":
            yield b'{"this is": "no event"}\n'
        if fault.then == "error" and fault.error is not None:
            yield events.dumps({"error": fault.error.body()}) + b"\n"
        if fault.then == "gap":
            for event in self.transcripts[session_id][at + 1 :]:
                yield events.encode(event)


def _json(body: BaseModel, status: int = 200) -> Response:
    return Response(body.model_dump_json(), status, media_type="application/json")


def _error(error: errors.HoldfastError) -> Response:
    return JSONResponse({"error": error.body()}, error.status)


class Routes:
    def __init__(self, api: FakeApi) -> None:
        self.api = api

    def _session(self, request: Request) -> bodies.Session:
        session = self.api.sessions.get(UUID(request.path_params["sid"]))
        if session is None:
            raise errors.SessionNotFound("no such session", hint="holdfast ls")
        return session

    async def sessions(self, request: Request) -> Response:
        if request.method == "POST":
            body = bodies.SessionCreate.model_validate_json(await request.body())
            made = body.model_dump(exclude_none=True)
            return _json(self.api.add_session(**made), 201)
        archived = request.query_params.get("archived") == "true"
        every = [each for each in self.api.sessions.values() if each.archived == archived]
        every.sort(key=lambda each: each.updated_at, reverse=True)
        start = int(request.query_params.get("cursor", "0"))
        size = self.api.page or len(every) + 1
        more = str(start + size) if start + size < len(every) else None
        return _json(bodies.SessionPage(sessions=every[start : start + size], next_cursor=more))

    async def session(self, request: Request) -> Response:
        session = self._session(request)
        if request.method == "PATCH":
            patch = bodies.SessionPatch.model_validate_json(await request.body())
            named = {name: getattr(patch, name) for name in patch.model_fields_set}
            session = session.model_copy(update=named)
            self.api.sessions[session.id] = session
        if request.method == "DELETE":
            if self.api.on_delete is not None:
                await self.api.on_delete(session.id)
            del self.api.sessions[session.id]
            gone = bodies.SessionDeleted(
                session_id=session.id,
                sandboxes=1,
                objects=3,
                state_objects=4,
                turns=2,
                events=45,
            )
            return _json(gone)
        return _json(session)

    async def turns(self, request: Request) -> Response:
        session = self._session(request)
        if request.method == "GET":
            mine = [turn for turn in self.api.turns.values() if turn.session_id == session.id]
            return _json(bodies.TurnPage(turns=mine))
        body = bodies.TurnCreate.model_validate_json(await request.body())
        turn = self.api.start_turn(session.id, body)
        if self.api.on_turn is not None:
            self.api.append(session.id, *await self.api.on_turn(turn), turn_id=turn.id)
        return _json(turn, 202)

    async def turn(self, request: Request) -> Response:
        turn = self.api.turns[UUID(request.path_params["tid"])]
        answer = _json(turn)
        if turn.state == "queued":
            self.api.looks_at_queued += 1
            if self.api.looks_at_queued == self.api.begins_after:
                self.api.begin(turn)
        return answer

    async def manifest(self, request: Request) -> Response:
        content = self.api.manifests.get(UUID(request.path_params["tid"]))
        if content is None:
            raise errors.NotFound("no manifest", hint="it has no receipt")
        return Response(content, media_type="application/json")

    async def leaks(self, request: Request) -> Response:
        return _json(bodies.LeakList(leaks=self.api.leaks))

    async def cancel(self, request: Request) -> Response:
        turn = self.api.turns[UUID(request.path_params["tid"])]
        if turn.state == "queued":
            return _json(self.api.end_queued(turn), 202)
        self.api.append(turn.session_id, events.TurnCancelled(reason="asked"), turn_id=turn.id)
        return _json(turn, 202)

    async def events(self, request: Request) -> Response:
        session = self._session(request)
        if self.api.faults and self.api.faults[0].then == "refuse":
            refused = self.api.faults.pop(0).error
            raise refused or errors.Unavailable("not now")
        query = request.query_params
        return StreamingResponse(
            self.api.stream(session.id, int(query["after"]), query["follow"] == "true"),
            media_type="application/x-ndjson",
        )

    async def invoke(self, request: Request) -> Response:
        body = bodies.InvokeRequest.model_validate_json(await request.body())
        sid = body.session_id or self.api.add_session().id
        prompt = str(body.data.inputs.messages[-1].content)
        turn = self.api.start_turn(sid, bodies.TurnCreate(prompt=prompt))
        return StreamingResponse(self.api.stream(sid, turn.first_seq - 1, False))

    async def list_files(self, request: Request) -> Response:
        self._session(request)
        path = request.query_params["path"]
        entries = [
            bodies.FileEntry(path=name, name=name, kind="file", size=len(content))
            for name, content in self.api.files.items()
        ]
        start = int(request.query_params.get("cursor", "0"))
        size = self.api.page or len(entries) + 1
        more = str(start + size) if start + size < len(entries) else None
        shown = entries[start : start + size]
        return _json(bodies.FilePage(path=path, entries=shown, next_cursor=more))

    async def file(self, request: Request) -> Response:
        self._session(request)
        path = request.path_params["path"]
        if ".." in path.split("/") or path.startswith("/"):
            raise errors.InvalidPath(f"{path} leaves the workspace")
        if path not in self.api.files:
            raise errors.FileNotFound(f"no file {path}")
        content = self.api.files[path]
        if told := request.headers.get("range"):
            start, stop = (int(each) for each in told.removeprefix("bytes=").split("-"))
            if start >= len(content):
                raise errors.RangeNotSatisfiable("past the end")
            part = content[start : stop + 1]
            where = f"bytes {start}-{start + len(part) - 1}/{len(content)}"
            return Response(part, 206, {"Content-Range": where})
        if self.api.cut_files_after is not None:
            return StreamingResponse(_cut(content[: self.api.cut_files_after]))
        return Response(content)

    async def live_file(self, request: Request) -> Response:
        return Response(self.api.live_files[request.query_params["path"]])

    async def list_sandboxes(self, request: Request) -> Response:
        return _json(bodies.SandboxList(sandboxes=self.api.sandboxes))

    async def kill(self, request: Request) -> Response:
        session = self._session(request)
        if self.api.on_kill is not None:
            return _json(self.api.on_kill())
        return _json(bodies.Killed(session_id=session.id, killed=True, sandbox_id="box-1"))

    async def told_capabilities(self, request: Request) -> Response:
        assert self.api.capabilities is not None
        return _json(self.api.capabilities)

    async def readyz(self, request: Request) -> Response:
        return _json(bodies.Readiness(ready=False, parts={"database": "away"}), 503)

    async def healthz(self, request: Request) -> Response:
        return _json(bodies.Health())


async def _cut(content: bytes) -> AsyncIterator[bytes]:
    yield content
    raise CutError


def build_app(api: FakeApi) -> ASGIApp:
    routes = Routes(api)
    app = Starlette(
        routes=[
            Route("/healthz", routes.healthz),
            Route("/readyz", routes.readyz),
            Route("/capabilities", routes.told_capabilities),
            Route("/sessions", routes.sessions, methods=["GET", "POST"]),
            Route("/sessions/{sid}", routes.session, methods=["GET", "PATCH", "DELETE"]),
            Route("/sandboxes", routes.list_sandboxes),
            Route("/leaks", routes.leaks),
            Route("/sessions/{sid}/turns", routes.turns, methods=["GET", "POST"]),
            Route("/sessions/{sid}/turns/{tid}", routes.turn),
            Route("/sessions/{sid}/turns/{tid}/manifest", routes.manifest),
            Route("/sessions/{sid}/turns/{tid}/cancel", routes.cancel, methods=["POST"]),
            Route("/sessions/{sid}/events", routes.events),
            Route("/sessions/{sid}/files", routes.list_files),
            Route("/sessions/{sid}/files/{path:path}", routes.file),
            Route("/sessions/{sid}/live", routes.list_files),
            Route("/sessions/{sid}/live/file", routes.live_file),
            Route("/sessions/{sid}/kill", routes.kill, methods=["POST"]),
            Route("/invoke", routes.invoke, methods=["POST"]),
        ],
        exception_handlers={errors.HoldfastError: _handle},
    )

    # Plain ASGI: BaseHTTPMiddleware would end a cut response as if it were whole.
    async def record(scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        query = f"?{request.url.query}" if request.url.query else ""
        api.requests.append(f"{request.method} {scope['raw_path'].decode()}{query}")
        api.tokens.add(request.headers.get("authorization", ""))
        answer = api.answers.get(request.url.path)
        if isinstance(answer, errors.HoldfastError):
            answer = _error(answer)
        await (answer or app)(scope, receive, send)

    return record


async def _handle(_: Request, error: Exception) -> Response:
    assert isinstance(error, errors.HoldfastError)
    return _error(error)


@contextmanager
def serve() -> Iterator[FakeApi]:
    """The server in a thread of its own, since the commands under test block theirs."""
    api = FakeApi()
    # with the protocol named, asyncio sets TCP_NODELAY
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP) as bound:
        bound.bind(("127.0.0.1", 0))
        api.url = f"http://127.0.0.1:{bound.getsockname()[1]}"
        config = uvicorn.Config(
            build_app(api), log_config=None, lifespan="off", timeout_graceful_shutdown=2
        )
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [bound]}, daemon=True)
        thread.start()
        deadline = time.monotonic() + START_SECONDS
        while not server.started:
            assert time.monotonic() < deadline, "the server did not start"
            time.sleep(0.01)
        try:
            yield api
        finally:
            api.closing = server.should_exit = True
            thread.join(START_SECONDS)
            assert not thread.is_alive(), "the server did not stop"


def closed_port() -> int:
    """A port that nobody listens on."""
    # with the protocol named, asyncio sets TCP_NODELAY
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP) as bound:
        bound.bind(("127.0.0.1", 0))
        return int(bound.getsockname()[1])


def parse_lines(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]
