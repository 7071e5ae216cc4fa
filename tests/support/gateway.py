"""The real gateway, clients of its sockets, and a stand-in for a vendor's model API.

`gateway()` serves it from a thread of the test process, `gateway_process()` as `python -m
sidecar.gateway`, for tests that kill it, restart it or look at the process.
"""

from __future__ import annotations

import asyncio
import io
import json
import logging
import os
import signal
import socket
import sys
import tempfile
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock
from uuid import UUID, uuid4

import httpx
import uvicorn
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from contracts.logs import TALKATIVE, TextFormatter
from contracts.session_tokens import session_token
from contracts.tls import verification_for
from sidecar.gateway.server import GatewayServer
from sidecar.gateway.settings import Settings
from tests.support.paths import ROOT

REAL_KEY = "sk-real-0123456789"
DUMMY = "dummy-token-of-the-sandbox"
PORT_SECRET = "a secret of gateway and sidecar"

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
    transport = httpx.AsyncHTTPTransport(uds=str(path), verify=verification_for("unix:"))
    return httpx.AsyncClient(
        transport=transport,
        base_url="http://gateway",
        timeout=15,
        headers={"authorization": f"Bearer {DUMMY}"},
    )


@dataclass
class Gateway:
    """A gateway that runs in a directory of its own."""

    directory: Path
    env: dict[str, str] = field(default_factory=dict)

    @property
    def control(self) -> Path:
        return self.directory / "control.sock"

    @property
    def sockets(self) -> Path:
        return self.directory / "sessions"

    @property
    def log(self) -> str:
        """All that it has logged."""
        raise NotImplementedError

    async def open(self, session_id: UUID | None = None) -> Path:
        async with client_of(self.control) as client:
            answer = await client.put(f"/sessions/{session_id or uuid4()}")
        assert answer.status_code == 200, answer.text
        return Path(answer.json()["socket"])

    def _environment(self) -> dict[str, str]:
        return {
            "PATH": os.defpath,
            "HOLDFAST_GATEWAY_CONTROL": str(self.control),
            "HOLDFAST_GATEWAY_DIR": str(self.sockets),
            **self.env,
        }


@dataclass
class ServedGateway(Gateway):
    """Served from a thread of this process, with a loop of its own."""

    _log: io.StringIO = field(default_factory=io.StringIO)
    _server: GatewayServer | None = None
    _thread: threading.Thread | None = None

    @property
    def log(self) -> str:
        return self._log.getvalue()

    def settings(self) -> Settings:
        """Read from this gateway's environment, and from nothing else."""
        with mock.patch.dict(os.environ, self._environment(), clear=True):
            return Settings()

    async def start(self) -> None:
        """Serve in the directory; after `stop`, it is the next gateway there."""
        self._server = server = GatewayServer(self.settings())
        self._thread = thread = threading.Thread(target=self._run, args=(server,), daemon=True)
        thread.start()
        await until(lambda: server.started or not thread.is_alive(), 60)
        assert server.started, self.log

    async def stop(self) -> None:
        """As SIGTERM stops the process; nothing when it is stopped already."""
        if self._server is None or self._thread is None:
            return
        self._server.stop()
        await asyncio.to_thread(self._thread.join, 30)
        assert not self._thread.is_alive()

    def _run(self, server: GatewayServer) -> None:
        with _logging_to(self._log):
            server.run()


@contextmanager
def _logging_to(stream: io.StringIO) -> Iterator[None]:
    """What this thread logs goes to the stream, in the form in which the process writes it, but
    nothing is masked: what must not be logged shows here."""
    thread = threading.get_ident()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(TextFormatter())
    handler.addFilter(lambda record: record.thread == thread)
    handler.addFilter(
        lambda record: record.levelno >= logging.WARNING or not record.name.startswith(TALKATIVE)
    )
    root = logging.getLogger()
    logging.getLogger("sidecar.gateway").setLevel(logging.INFO)
    root.addHandler(handler)
    try:
        yield
    except Exception:
        logging.getLogger(__name__).exception("the gateway failed")
        raise
    finally:
        root.removeHandler(handler)


@dataclass
class GatewayProcess(Gateway):
    """One gateway process; `start` again after `end` is a restart in the same directory."""

    process: asyncio.subprocess.Process | None = None

    @property
    def log(self) -> str:
        return (self.directory / "log").read_text()

    async def start(self) -> None:
        process = await self.spawn()
        async with client_of(self.control) as client, asyncio.timeout(120):
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
                env=self._environment(),
                stdout=log,
                stderr=log,
            )
        return self.process

    async def end(self, how: signal.Signals = signal.SIGTERM) -> None:
        """Send the signal and wait for the end."""
        assert self.process
        if self.process.returncode is None:
            self.process.send_signal(how)
        try:
            async with asyncio.timeout(20):
                await self.process.wait()
        finally:
            if self.process.returncode is None:
                self.process.kill()
                await self.process.wait()

    async def _is_healthy(self, client: httpx.AsyncClient) -> bool:
        try:
            return (await client.get("/healthz")).status_code == 200
        except httpx.TransportError:
            return False


@asynccontextmanager
async def gateway(**env: str) -> AsyncIterator[ServedGateway]:
    """A gateway in this process, with this environment alone."""
    with _directory() as directory:
        running = ServedGateway(directory, env)
        try:
            await running.start()
            yield running
        finally:
            await running.stop()


@asynccontextmanager
async def gateway_process(**env: str) -> AsyncIterator[GatewayProcess]:
    with _directory() as directory:
        running = GatewayProcess(directory, env)
        try:
            await running.start()
            yield running
        finally:
            if running.process is not None:
                await running.end(signal.SIGKILL)


@contextmanager
def _directory() -> Iterator[Path]:
    # not pytest's tmp_path: a unix socket's path has room for 107 bytes only
    with tempfile.TemporaryDirectory(prefix="gw-") as directory:
        yield Path(directory)


@asynccontextmanager
async def session(**env: str) -> AsyncIterator[tuple[Gateway, httpx.AsyncClient]]:
    """A gateway and a client on the socket of one session."""
    async with AsyncExitStack() as stack:
        running = await stack.enter_async_context(gateway(**env))
        client = await stack.enter_async_context(client_of(await running.open()))
        yield running, client


def content_of(answer: httpx.Response) -> str:
    """What the model said in an answer to `chat`."""
    assert answer.status_code == 200, answer.text
    return str(answer.json()["choices"][0]["message"]["content"])


async def ask(path: Path, prompt: str) -> str:
    """What the scripted model says to a prompt, by a session's socket."""
    async with client_of(path) as client:
        return content_of(await client.post("/v1/chat/completions", json=chat(prompt)))


@asynccontextmanager
async def ticking(path: Path, seconds: int) -> AsyncIterator[AsyncIterator[str]]:
    """A slow answer of which the first tick has been read."""
    body = chat(f"wait {seconds} seconds", stream=True)
    async with (
        asyncio.timeout(30),
        client_of(path) as client,
        client.stream("POST", "/v1/chat/completions", json=body) as answer,
    ):
        lines = (line async for line in answer.aiter_lines() if "content" in line)
        while "tick 1 " not in await anext(lines):
            pass
        yield lines


async def begin_turn(running: Gateway, session_id: UUID, **terms: Any) -> Path:
    """A turn begins on these terms; the session's socket."""
    async with client_of(running.control) as client:
        answer = await client.put(
            f"/sessions/{session_id}", json={"turn_id": str(uuid4()), **terms}
        )
    assert answer.status_code == 200, answer.text
    return Path(answer.json()["socket"])


async def connect(path: Path, target: str) -> tuple[int, str]:
    """Status and code of the refusal of a CONNECT by a session's socket."""
    reader, writer = await asyncio.open_unix_connection(str(path))
    writer.write(f"CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\n".encode())
    async with asyncio.timeout(20):
        head, _, body = (await reader.read(-1)).partition(b"\r\n\r\n")
    writer.close()
    return int(head.split()[1]), json.loads(body)["error"]["code"]


def port_settings(port: int) -> dict[str, str]:
    """Of a gateway with a port for clouds."""
    return {"HOLDFAST_GATEWAY_PORT": str(port), "HOLDFAST_GATEWAY_SECRET": PORT_SECRET}


def token_of(session_id: UUID | str, secret: str = PORT_SECRET) -> str:
    """What opens the session at the port for clouds."""
    return session_token(secret.encode(), str(session_id))


def client_of_port(port: int, **headers: str) -> httpx.AsyncClient:
    url = f"http://127.0.0.1:{port}"
    return httpx.AsyncClient(
        base_url=url, timeout=15, headers=headers, trust_env=False, verify=verification_for(url)
    )


async def status_by_port(port: int, **headers: str) -> int:
    async with client_of_port(port, **headers) as client:
        answer = await client.post("/v1/chat/completions", json=chat("say hi"))
        return answer.status_code


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
    # The protocol is named because asyncio sets TCP_NODELAY only on a socket that knows it.
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP) as listening:
        listening.bind(("127.0.0.1", 0))
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
