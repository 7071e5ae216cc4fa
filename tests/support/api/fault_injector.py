"""A fault injector in the sidecar's place: it speaks its wire, and breaks it on demand.

It runs nothing. It exists for what a real sidecar must never be made to do: streams that are cut
in the middle of a line, repeated, jumped, or garbled; 503s; runs that are forgotten or never end.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from contracts.bodies import (
    Agreed,
    Capabilities,
    Changed,
    Destroyed,
    FileEntry,
    FilePage,
    FilesDeleted,
    HarnessBody,
    Killed,
    PermissionAnswer,
    ProviderBody,
    Released,
    RunBody,
    RunList,
    RunRequest,
    SandboxBody,
    SandboxList,
)
from contracts.errors import (
    FileNotFound,
    HoldfastError,
    RunNotFound,
    SandboxNotFound,
    WorkspaceMounted,
)
from contracts.events import TURN_END_TYPES, dumps
from tests.support import names

SECRET = "injector-secret"
STREAM_BOUND = 60.0

CAPABILITIES = Capabilities(
    harnesses=[
        HarnessBody(name="claude", title="Claude Code", can_ask=True),
        HarnessBody(name="pi", title="pi", can_ask=False),
    ],
    providers=[
        ProviderBody(name="local", title="Local", available=True, engine="weed"),
        ProviderBody(name="e2b", title="E2B", available=False, reason="E2B_API_KEY is not set."),
    ],
    default_harness="claude",
    default_provider="local",
)

# What a connection sends instead of the journal's lines, given those; None cuts it there.
Fault = Callable[[list[bytes]], list[bytes | None]]


def event_line(n: int, kind: str, /, **fields: Any) -> bytes:
    return dumps({"n": n, "event": {"type": kind, **fields}}) + b"\n"


def numbered(*events: tuple[str, dict[str, Any]]) -> list[bytes]:
    return [event_line(n, kind, **fields) for n, (kind, fields) in enumerate(events, start=1)]


def short_run(text: str = "done") -> list[bytes]:
    """A run as a real one looks, in six lines."""
    receipt = {"engine": "weed", "files": 1, "bytes": 5, "manifest_sha256": "0" * 64, "took": 0.1}
    return numbered(
        (names.SANDBOX_CREATING, {"provider": "local"}),
        (names.SANDBOX_READY, {"provider": "local", "sandbox_id": "box-1", "took": 0.2}),
        ("message", {"role": "assistant", "text": text}),
        ("usage", {"input_tokens": 1, "output_tokens": 2}),
        ("receipt", receipt),
        (names.TURN_COMPLETED, {"stop_reason": "end_turn"}),
    )


@dataclass
class FaultyRun:
    """One run: its journal, and a fault for each of its first connections."""

    request: RunRequest
    journal: list[bytes] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    connections: list[int] = field(default_factory=list)
    # lines that went out to the last connection, counted from the run's first one
    sent: int = 0
    cancels: int = 0
    # answers that came, and the errors to meet the next of them with
    answers: list[tuple[str, PermissionAnswer]] = field(default_factory=list)
    answer_errors: list[HoldfastError] = field(default_factory=list)
    deaf: bool = False
    dropping: bool = False

    def drop(self) -> None:
        """Cut the connection that is open."""
        self.dropping = True

    @property
    def ended(self) -> bool:
        return bool(self.journal) and json.loads(self.journal[-1])["event"]["type"] in (
            TURN_END_TYPES
        )

    def say(self, kind: str, /, **fields: Any) -> None:
        self.journal.append(event_line(len(self.journal) + 1, kind, **fields))

    def body(self) -> RunBody:
        return RunBody(
            turn_id=self.request.turn_id,
            session_id=self.request.session_id,
            state="ended" if self.ended else "running",
            last_n=len(self.journal),
        )

    async def stream(self, after: int) -> AsyncIterator[bytes]:
        self.connections.append(after)
        if self.faults:
            for line in self.faults.pop(0)(self.journal[after:]):
                if line is None:
                    raise ConnectionAbortedError
                yield line
            return
        async with asyncio.timeout(STREAM_BOUND):
            self.sent = after
            while True:
                for line in self.journal[self.sent :]:
                    yield line
                    self.sent += 1
                if self.ended and self.sent >= len(self.journal):
                    return
                if self.dropping:
                    self.dropping = False
                    raise ConnectionAbortedError
                await asyncio.sleep(0.01)


# What a run that is asked for shall be.
Plan = Callable[[FaultyRun], None]


class FaultInjector:
    """The wire of a sidecar. `plan` says what a run that is asked for shall be."""

    def __init__(self) -> None:
        self.runs: dict[UUID, FaultyRun] = {}
        self.plan: Plan = lambda run: run.journal.extend(short_run())
        # errors to answer the next calls of POST /runs with
        self.start_errors: list[HoldfastError | None] = []
        self.starts = 0
        # the headers of each call of POST /runs
        self.started_with: list[dict[str, str]] = []
        self.live: dict[str, bytes] = {}
        self.boxes: dict[UUID, str] = {}
        # boxes beside those: of no session, or a second one of a session
        self.strays: list[SandboxBody] = []
        # the providers that a listing speaks for
        self.asked = ["local"]
        self.destroyed: list[str] = []
        self.destroy_errors: list[HoldfastError] = []
        self.listings = 0
        # what happens between the making of a listing and its answer
        self.after_listing: Callable[[], Awaitable[None] | None] = lambda: None
        # sessions whose workspace is mounted, and what was changed through the mount
        self.mounted: set[UUID] = set()
        self.changed: list[tuple[str, ...]] = []
        self.holds: list[tuple[UUID, list[Any]]] = []
        self.hold_errors: list[HoldfastError] = []
        self.let_go = asyncio.Event()  # of every hold
        self._open_holds: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = []
        # what a running turn's session was told of its terms
        self.terms: list[tuple[UUID, dict[str, Any]]] = []
        self.released: list[UUID] = []
        self.release_errors: list[HoldfastError] = []
        self.lock = threading.Lock()

    def app(self) -> Starlette:
        routes = [
            Route("/healthz", self._health),
            Route("/capabilities", self._capabilities),
            Route("/runs", self._start, methods=["POST"]),
            Route("/runs", self._running),
            Route("/runs/{turn_id:uuid}", self._run),
            Route("/runs/{turn_id:uuid}/events", self._events),
            Route("/runs/{turn_id:uuid}/cancel", self._cancel, methods=["POST"]),
            Route(
                "/runs/{turn_id:uuid}/permissions/{pid}", self._answer_permission, methods=["POST"]
            ),
            Route("/sandboxes", self._sandboxes),
            Route("/sandboxes/{provider}/{box}", self._destroy, methods=["DELETE"]),
            Route("/sessions/{sid:uuid}/kill", self._kill, methods=["POST"]),
            Route("/sessions/{sid:uuid}", self._release, methods=["DELETE"]),
            Route("/sessions/{sid:uuid}/terms", self._agree, methods=["PUT"]),
            Route("/sessions/{sid:uuid}/live", self._live),
            Route("/sessions/{sid:uuid}/hold", self._hold, methods=["POST"]),
            Route("/sessions/{sid:uuid}/mount/file", self._put_file, methods=["PUT"]),
            Route("/sessions/{sid:uuid}/mount/file", self._delete_file, methods=["DELETE"]),
            Route("/sessions/{sid:uuid}/mount/folder", self._make_folder, methods=["POST"]),
            Route("/sessions/{sid:uuid}/mount/move", self._move, methods=["POST"]),
            Route("/sessions/{sid:uuid}/live/file", self._live_file),
        ]
        return Starlette(routes=routes, exception_handlers={HoldfastError: _render})

    async def _health(self, _request: Request) -> Response:
        return JSONResponse({"status": "ok"})

    async def _capabilities(self, request: Request) -> Response:
        if request.headers.get("authorization") != f"Bearer {SECRET}":
            return JSONResponse({"error": {"code": "unauthenticated", "message": ""}}, 401)
        return _json(CAPABILITIES)

    async def _start(self, request: Request) -> Response:
        self.starts += 1
        self.started_with.append(dict(request.headers))
        body = RunRequest.model_validate_json(await request.body())
        if self.start_errors:
            error = self.start_errors.pop(0)
            if error is None:
                return Response("bad gateway", 502)
            raise error
        with self.lock:
            run = self.runs.get(body.turn_id)
            if run is None:
                run = FaultyRun(body)
                self.plan(run)
                self.runs[body.turn_id] = run
        return _json(run.body(), 202)

    def _found(self, request: Request) -> FaultyRun:
        run = self.runs.get(request.path_params["turn_id"])
        if run is None:
            raise RunNotFound("There is no such run.")
        return run

    async def _running(self, _: Request) -> Response:
        return _json(RunList(runs=[run.body() for run in self.runs.values() if not run.ended]))

    async def _run(self, request: Request) -> Response:
        return _json(self._found(request).body())

    async def _events(self, request: Request) -> Response:
        stream = self._found(request).stream(int(request.query_params["after"]))
        return StreamingResponse(stream, media_type="application/x-ndjson")

    async def _cancel(self, request: Request) -> Response:
        run = self._found(request)
        run.cancels += 1
        if not run.ended and not run.deaf:
            run.say(names.TURN_CANCELLED, reason="asked to")
        return _json(run.body(), 202)

    async def _answer_permission(self, request: Request) -> Response:
        run = self._found(request)
        answer = PermissionAnswer.model_validate_json(await request.body())
        if run.answer_errors:
            raise run.answer_errors.pop(0)
        pid = request.path_params["pid"]
        run.answers.append((pid, answer))
        run.say(names.PERMISSION_ANSWERED, permission_id=pid, **answer.model_dump())
        return _json(run.body())

    async def _sandboxes(self, _request: Request) -> Response:
        boxes = [
            SandboxBody(session_id=sid, sandbox_id=box, provider="local", state="running")
            for sid, box in self.boxes.items()
        ]
        answer = _json(SandboxList(sandboxes=[*boxes, *self.strays], asked=self.asked))
        self.listings += 1
        if (more := self.after_listing()) is not None:
            await more
        return answer

    async def _destroy(self, request: Request) -> Response:
        provider, box = request.path_params["provider"], request.path_params["box"]
        self.destroyed.append(box)
        if self.destroy_errors:
            raise self.destroy_errors.pop(0)
        lived = box in {stray.sandbox_id for stray in self.strays} | set(self.boxes.values())
        self.strays = [stray for stray in self.strays if stray.sandbox_id != box]
        self.boxes = {sid: each for sid, each in self.boxes.items() if each != box}
        proof = "status is gone"
        return _json(Destroyed(provider=provider, sandbox_id=box, lived=lived, proof=proof))

    async def _kill(self, request: Request) -> Response:
        sid = request.path_params["sid"]
        box = self.boxes.pop(sid, None)
        return _json(Killed(session_id=sid, killed=box is not None, sandbox_id=box))

    async def _release(self, request: Request) -> Response:
        sid = request.path_params["sid"]
        if self.release_errors:
            raise self.release_errors.pop(0)
        self.released.append(sid)
        box = self.boxes.pop(sid, None)
        return _json(Released(session_id=sid, sandboxes=int(box is not None), mounts=0))

    async def _agree(self, request: Request) -> Response:
        sid = request.path_params["sid"]
        self.terms.append((sid, await request.json()))
        return _json(Agreed(session_id=sid))

    async def _hold(self, request: Request) -> Response:
        if self.hold_errors:
            raise self.hold_errors.pop(0)
        sid = request.path_params["sid"]
        if sid in self.mounted:
            raise WorkspaceMounted("mounted")
        self.holds.append((sid, (await request.json())["edits"]))
        ended = asyncio.Event()
        with self.lock:
            self._open_holds.append((asyncio.get_running_loop(), ended))

        async def beats() -> AsyncIterator[bytes]:
            yield b"\n"
            if not self.let_go.is_set():
                await ended.wait()

        return StreamingResponse(beats())

    def cut_holds(self) -> None:
        """From any thread: those that there are end, as they do when the sidecar dies."""
        with self.lock:
            cut, self._open_holds = self._open_holds, []
        for loop, ended in cut:
            loop.call_soon_threadsafe(ended.set)

    def _through_mount(self, request: Request) -> None:
        if request.path_params["sid"] not in self.mounted:
            raise SandboxNotFound("not mounted")

    async def _put_file(self, request: Request) -> Response:
        self._through_mount(request)
        digest = hashlib.sha256()
        async for chunk in request.stream():
            digest.update(chunk)
        path = request.query_params["path"]
        self.changed.append(("put", path, digest.hexdigest()))
        return _json(Changed(path=path, name=path, kind="file", via="mount"))

    async def _delete_file(self, request: Request) -> Response:
        self._through_mount(request)
        path = request.query_params["path"]
        self.changed.append(("delete", path))
        return _json(FilesDeleted(path=path, files=1, directories=0, via="mount"))

    async def _make_folder(self, request: Request) -> Response:
        self._through_mount(request)
        path = (await request.json())["path"]
        self.changed.append(("mkdir", path))
        return _json(Changed(path=path, name=path, kind="directory", via="mount"))

    async def _move(self, request: Request) -> Response:
        self._through_mount(request)
        body = await request.json()
        self.changed.append(("move", body["source"], body["target"]))
        return _json(Changed(path=body["target"], name="", kind="file", via="mount"))

    async def _live(self, request: Request) -> Response:
        entries = [
            FileEntry(path=path, name=path, kind="file", size=len(content))
            for path, content in self.live.items()
        ]
        return _json(FilePage(path=request.query_params["path"], entries=entries))

    async def _live_file(self, request: Request) -> Response:
        content = self.live.get(request.query_params["path"])
        if content is None:
            raise FileNotFound("There is no such file.")
        return Response(content, media_type="text/html")


def _json(body: Any, status: int = 200) -> Response:
    return Response(body.model_dump_json(), status, media_type="application/json")


async def _render(_request: Request, error: Exception) -> Response:
    assert isinstance(error, HoldfastError)
    return JSONResponse({"error": error.body()}, error.status)


@contextlib.contextmanager
def planned(injector: FaultInjector, plan: Plan) -> Iterator[None]:
    """Runs that are asked for within the block are made by `plan`.

    Raises: AssertionError when none was asked for: the run would come later, by another plan.
    """
    made = 0

    def make(run: FaultyRun) -> None:
        nonlocal made
        plan(run)
        made += 1

    before, injector.plan = injector.plan, make
    try:
        yield
    finally:
        injector.plan = before
    assert made, "the block ended before a run was asked for; start it with Api.start_run"
