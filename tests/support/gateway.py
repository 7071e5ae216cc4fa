"""A real gateway process, clients of its sockets, and a stand-in for a vendor's model API."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import httpx
import uvicorn
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tests.support.paths import ROOT

REAL_KEY = "sk-real-0123456789"
DUMMY = "dummy-token-of-the-sandbox"

_TOOL = {"name": "bash", "parameters": {"properties": {"command": {"type": "string"}}}}


async def until(condition: Callable[[], bool], seconds: float = 10.0) -> None:
    """Wait for a condition, or fail."""
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.01)


def chat(prompt: str, **more: Any) -> dict[str, Any]:
    """A chat request of a harness that has a shell."""
    return {
        "model": "scripted-1",
        "messages": [{"role": "user", "content": prompt}],
        "tools": [{"type": "function", "function": _TOOL}],
        **more,
    }


def client_of(path: Path) -> httpx.AsyncClient:
    transport = httpx.AsyncHTTPTransport(uds=str(path))
    return httpx.AsyncClient(
        transport=transport,
        base_url="http://gateway",
        timeout=15,
        headers={"authorization": f"Bearer {DUMMY}"},
    )


@dataclass
class Gateway:
    """One gateway process; `start` again after `kill` is a restart in the same directory."""

    directory: Path
    env: dict[str, str] = field(default_factory=dict)
    process: asyncio.subprocess.Process | None = None

    @property
    def control(self) -> Path:
        return self.directory / "control.sock"

    @property
    def sockets(self) -> Path:
        return self.directory / "sessions"

    @property
    def log(self) -> str:
        return (self.directory / "log").read_text()

    async def start(self) -> None:
        process = await self.spawn()
        async with client_of(self.control) as client, asyncio.timeout(20):
            while not await self._is_healthy(client):
                assert process.returncode is None, self.log
                await asyncio.sleep(0.02)

    async def spawn(self) -> asyncio.subprocess.Process:
        with (self.directory / "log").open("ab") as log:
            self.process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "sidecar.gateway",
                cwd=ROOT,
                env={
                    "PATH": os.defpath,
                    "HOLDFAST_GATEWAY_CONTROL": str(self.control),
                    "HOLDFAST_GATEWAY_DIR": str(self.sockets),
                    **self.env,
                },
                stdout=log,
                stderr=log,
            )
        return self.process

    async def end(self, how: signal.Signals = signal.SIGTERM) -> float:
        """Seconds it took to end."""
        assert self.process
        started = time.monotonic()
        if self.process.returncode is None:
            self.process.send_signal(how)
        try:
            async with asyncio.timeout(10):
                await self.process.wait()
        finally:
            if self.process.returncode is None:
                self.process.kill()
                await self.process.wait()
        return time.monotonic() - started

    async def open(self, session_id: UUID | None = None) -> Path:
        async with client_of(self.control) as client:
            answer = await client.put(f"/sessions/{session_id or uuid4()}")
        assert answer.status_code == 200, answer.text
        return Path(answer.json()["socket"])

    async def _is_healthy(self, client: httpx.AsyncClient) -> bool:
        try:
            return (await client.get("/healthz")).status_code == 200
        except httpx.TransportError:
            return False


@asynccontextmanager
async def gateway(**env: str) -> AsyncIterator[Gateway]:
    # not pytest's tmp_path: a unix socket's path has room for 107 bytes only
    with tempfile.TemporaryDirectory(prefix="gw-") as directory:
        running = Gateway(Path(directory), env)
        try:
            await running.start()
            yield running
        finally:
            await running.end(signal.SIGKILL)


@asynccontextmanager
async def session(**env: str) -> AsyncIterator[tuple[Gateway, httpx.AsyncClient]]:
    """A gateway and a client on the socket of one session."""
    async with AsyncExitStack() as stack:
        running = await stack.enter_async_context(gateway(**env))
        client = await stack.enter_async_context(client_of(await running.open()))
        yield running, client


class _Server(uvicorn.Server):
    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield  # the signals are pytest's


@dataclass
class Vendor:
    """Stands in for a vendor's model API: records requests and answers as it is told."""

    requests: list[tuple[str, dict[str, str], bytes]] = field(default_factory=list)
    first_byte: asyncio.Event = field(default_factory=asyncio.Event)
    go_on: asyncio.Event = field(default_factory=asyncio.Event)
    hung_up: asyncio.Event = field(default_factory=asyncio.Event)
    status: int = 200
    breaks_off: bool = False
    headers: list[tuple[bytes, bytes]] = field(default_factory=list)
    url: str = ""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = await _body(receive)
        target = f"{scope['method']} {scope['path']}?{scope['query_string'].decode()}"
        headers = {name.decode(): value.decode() for name, value in scope["headers"]}
        self.requests.append((target, headers, body))
        async with asyncio.TaskGroup() as group:
            answering = group.create_task(self._answer(send))
            watching = group.create_task(self._watch(receive))
            answering.add_done_callback(lambda _: watching.cancel())
            watching.add_done_callback(lambda _: answering.cancel())

    async def _answer(self, send: Send) -> None:
        await self.first_byte.wait()
        await send({"type": "http.response.start", "status": self.status, "headers": self.headers})
        await send(_chunk(b"data: one\n\n"))
        await self.go_on.wait()
        if self.breaks_off:
            return
        await send(_chunk(b"data: two\n\n"))
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _watch(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self.hung_up.set()


@asynccontextmanager
async def vendor() -> AsyncIterator[Vendor]:
    stand_in = Vendor(headers=[(b"content-type", b"text/event-stream")])
    async with serving(stand_in) as url:
        stand_in.url = url
        try:
            yield stand_in
        finally:
            stand_in.first_byte.set()
            stand_in.go_on.set()


@asynccontextmanager
async def serving(app: ASGIApp) -> AsyncIterator[str]:
    """The URL of an app on a free port of loopback."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        config = uvicorn.Config(app, log_config=None, lifespan="off", timeout_graceful_shutdown=2)
        server = _Server(config)
        async with asyncio.TaskGroup() as group:
            group.create_task(server.serve(sockets=[listening]))
            await until(lambda: server.started)
            try:
                yield f"http://127.0.0.1:{listening.getsockname()[1]}"
            finally:
                server.should_exit = True


def _chunk(data: bytes) -> Message:
    return {"type": "http.response.body", "body": data, "more_body": True}


async def _body(receive: Receive) -> bytes:
    chunks = []
    while True:
        message = await receive()
        chunks.append(message.get("body", b""))
        if not message.get("more_body"):
            return b"".join(chunks)
