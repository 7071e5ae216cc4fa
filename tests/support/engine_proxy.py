"""A proxy on a socket of its own, and an engine that writes down exactly what reaches it."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from sidecar.engine_proxy.server import serving
from sidecar.engine_proxy.settings import Settings

STACK = "0a1b2c3d"
SESSION = "01890a5d-ac96-774b-bcce-b302099a8057"
BOX = hashlib.sha256(f"{SESSION}-3".encode()).hexdigest()[:16]
IMAGE = "holdfast-sandbox:latest"
CONTAINER_ID = "c0ffee" + "0" * 58


def name_of(session: str = SESSION, epoch: str = "3", stack: str = STACK) -> str:
    return f"holdfast-{stack}-{session}-{epoch}"


NAME = name_of()


def create_body(mounts: str = "/m", run: str = "/r", image: str = IMAGE) -> dict[str, Any]:
    """What the docker provider sends."""
    return {
        "Image": image,
        "User": "1000:1000",
        "Hostname": "sandbox",
        "Labels": {
            "holdfast.stack": STACK,
            "holdfast.session": SESSION,
            "holdfast.epoch": "3",
            "holdfast.key": f"{SESSION}-3",
        },
        "HostConfig": {
            "Mounts": [
                {
                    "Type": "bind",
                    "Source": f"{mounts}/{SESSION}",
                    "Target": "/session",
                    "BindOptions": {"Propagation": "rslave"},
                },
                {"Type": "bind", "Source": f"{run}/docker/{BOX}", "Target": "/run/holdfast/box"},
                {
                    "Type": "bind",
                    "Source": f"{run}/gateway/{SESSION}",
                    "Target": "/run/holdfast/gateway",
                    "ReadOnly": True,
                },
                {"Type": "volume", "Target": "/home/agent"},
            ],
            "Tmpfs": {"/tmp": "rw,nosuid,nodev,exec,size=1g,mode=1777"},
            "NetworkMode": "none",
            "ReadonlyRootfs": True,
            "CapDrop": ["ALL"],
            "SecurityOpt": ["no-new-privileges:true"],
            "Memory": 512 * 1024**2,
            "NanoCpus": 1_000_000_000,
            "PidsLimit": 100,
            "RestartPolicy": {"Name": "no"},
            "LogConfig": {"Type": "json-file", "Config": {"max-size": "1m"}},
        },
    }


@dataclass(frozen=True)
class Seen:
    method: str
    target: str
    headers: dict[str, str]
    body: bytes


@dataclass
class RecordingEngine:
    """Answers like an engine that has one container; `stack` is what its label says."""

    stack: str = STACK
    has_container: bool = True
    name: str = f"/{NAME}"
    container_id: str = CONTAINER_ID
    answer_bytes: int = 0
    drops: bool = False
    hangs: bool = False
    seen: list[Seen] = field(default_factory=list)

    @property
    def calls(self) -> list[tuple[str, str]]:
        return [(call.method, call.target) for call in self.seen]

    async def answer(self, request: web.BaseRequest) -> web.Response:
        body = await request.read()
        self.seen.append(Seen(request.method, request.raw_path, dict(request.headers), body))
        if self.drops:
            assert request.transport is not None
            request.transport.abort()
        if self.hangs:
            await asyncio.Event().wait()
        if self.answer_bytes:
            return web.Response(body=b" " * self.answer_bytes)
        path = request.raw_path.partition("?")[0]
        if path.endswith("/create"):
            return web.json_response({"Id": self.container_id, "Warnings": []}, status=201)
        if path.endswith("/containers/json"):
            return web.json_response([])
        if path.startswith(("/containers/", "/v1.41/containers/")) and path.endswith("/json"):
            return self._inspect()
        if path.endswith("/_ping"):
            return web.Response(text="OK", headers={"Api-Version": "1.41"})
        if path.endswith(("/version", "/json")):
            return web.json_response({"ok": path})
        return web.Response(status=204)

    def _inspect(self) -> web.Response:
        if not self.has_container:
            return web.json_response({"message": "No such container"}, status=404)
        labels = {"holdfast.stack": self.stack}
        return web.json_response(
            {"Id": self.container_id, "Name": self.name, "Config": {"Labels": labels}}
        )

    @asynccontextmanager
    async def at(self, path: Path) -> AsyncIterator[None]:
        runner = web.ServerRunner(
            web.Server(self.answer, access_log=None, handler_cancellation=True),
            shutdown_timeout=1,
        )
        await runner.setup()
        try:
            await web.UnixSite(runner, str(path)).start()
            yield
        finally:
            await runner.cleanup()


@dataclass(frozen=True)
class Reply:
    status: int
    body: Any

    @property
    def message(self) -> str:
        return str(self.body["message"])


@dataclass(frozen=True)
class Proxy:
    socket: Path

    async def call(self, method: str, target: str, body: Any = None) -> Reply:
        """One request; `target` goes out as it is, `body` as JSON, or as bytes as they are."""
        data = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body)
        raw = data.encode() if isinstance(data, str) else data
        head = f"{method} {target} HTTP/1.1\r\nHost: engine\r\nContent-Length: {len(raw)}\r\n"
        return (await self.send(f"{head}Connection: close\r\n\r\n".encode() + raw))[0]

    async def send(self, data: bytes) -> list[Reply]:
        """The answers to whatever these bytes are, until the proxy closes."""
        async with asyncio.timeout(20):
            reader, writer = await asyncio.open_unix_connection(str(self.socket))
            try:
                writer.write(data)
                return _replies(await reader.read())
            finally:
                writer.close()

    async def create(self, body: Any, target: str | None = None) -> Reply:
        return await self.call("POST", target or f"/v1.41/containers/create?name={NAME}", body)


def _replies(data: bytes) -> list[Reply]:
    found = []
    while data:
        head, _, rest = data.partition(b"\r\n\r\n")
        lines = head.decode().split("\r\n")
        headers = dict(line.lower().split(": ", 1) for line in lines[1:])
        length = int(headers.get("content-length", "0"))
        body: Any = rest[:length]
        if body and "json" in headers.get("content-type", ""):  # no body after a HEAD
            body = json.loads(body)
        found.append(Reply(int(lines[0].split()[1]), body))
        data = rest[length:]
    return found


def proxy_settings(directory: Path, **more: Any) -> Settings:
    given: dict[str, Any] = {
        "engine_socket": directory / "engine.sock",
        "engine_proxy_listen": directory / "proxy.sock",
        "docker_stack": STACK,
        "engine_proxy_boxes": directory,
        "docker_mounts_root": Path("/m"),
        "docker_run_root": Path("/r"),
        **more,
    }
    return Settings(**given)


@asynccontextmanager
async def running_proxy(settings: Settings) -> AsyncIterator[Proxy]:
    async with serving(settings):
        yield Proxy(settings.engine_proxy_listen)


def engine_client(socket: Path) -> aiohttp.ClientSession:
    return aiohttp.ClientSession(
        "http://engine",
        connector=aiohttp.UnixConnector(str(socket)),
        timeout=aiohttp.ClientTimeout(total=60),
    )


@pytest.fixture
async def engine(short_dir: Path) -> AsyncIterator[RecordingEngine]:
    recording = RecordingEngine()
    async with recording.at(short_dir / "engine.sock"):
        yield recording


@pytest.fixture
async def proxy(short_dir: Path, engine: RecordingEngine) -> AsyncIterator[Proxy]:
    async with running_proxy(proxy_settings(short_dir)) as running:
        yield running
