"""Nobody who is asked may send a service of ours elsewhere: no redirect is followed."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from api.sidecar import open_sidecar
from contracts.errors import HarnessExited, HarnessStartFailed, HoldfastError
from sidecar.harnesses.acp import AcpConnection
from sidecar.providers.base import Endpoint
from sidecar.providers.boxd import NoAnswer
from sidecar.providers.boxd_http import ByHttp
from sidecar.runs.gateway import Gateway
from tests.support.api.serving import make_settings
from tests.support.gateway import REAL_KEY, session
from tests.support.hostile_agent import REQUEST, connected
from tests.support.services import SeaweedFS

STATUSES = (301, 302, 303, 307, 308)


class Elsewhere:
    """Sends everybody on to a place of its own, and counts who comes there."""

    def __init__(self) -> None:
        self.url = ""
        self.sent = 0
        self.came: list[Any] = []
        self.status = 307

    async def away(self, request: web.Request) -> web.StreamResponse:
        if request.path.startswith("/elsewhere"):
            self.came.append((request.path, dict(request.headers)))
            return web.json_response({"status": "ok", "result": {"stopReason": "elsewhere"}})
        self.sent += 1
        place = {"Location": f"{self.url}/elsewhere{request.path}"}
        return web.Response(status=self.status, headers=place)


@contextlib.asynccontextmanager
async def served(socket: Path | None = None) -> AsyncIterator[Elsewhere]:
    elsewhere = Elsewhere()
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", elsewhere.away)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    if socket is not None:
        await web.UnixSite(runner, str(socket)).start()
    port = runner.addresses[0][1]
    elsewhere.url = f"http://127.0.0.1:{port}"
    try:
        yield elsewhere
    finally:
        await runner.cleanup()


@pytest.fixture(params=STATUSES)
async def elsewhere(request: pytest.FixtureRequest, short_dir: Path) -> AsyncIterator[Elsewhere]:
    async with served(short_dir / "sock") as place:
        place.status = request.param
        yield place


async def test_the_sidecar_is_not_sent_elsewhere_by_a_sandbox_agent(elsewhere: Elsewhere) -> None:
    endpoint = Endpoint(elsewhere.url, {"X-Provider-Token": "of-the-provider"})
    async with asyncio.timeout(60), connected(endpoint) as acp:
        with pytest.raises(HarnessStartFailed):
            await AcpConnection.start(acp._http, "srv", "pi")
        async with acp.listening():
            with pytest.raises((HarnessExited, HoldfastError)):
                await acp.prompt("go", REQUEST)
            assert not await acp.respond(1, {})
        await acp.delete()
    assert elsewhere.sent >= 5
    assert elsewhere.came == []


async def test_the_sidecar_is_not_sent_elsewhere_by_boxd(elsewhere: Elsewhere) -> None:
    boxd = ByHttp(Endpoint(elsewhere.url, {"X-Provider-Token": "of-the-provider"}), "token")
    with pytest.raises(NoAnswer):
        await boxd.call("run", bound=20)
    assert elsewhere.sent == 1
    assert elsewhere.came == []


async def test_the_api_is_not_sent_elsewhere_by_the_sidecar(elsewhere: Elsewhere) -> None:
    store = SeaweedFS("http://127.0.0.1:1", "access", "secret", "", {})
    settings = make_settings("postgresql://nobody", store, elsewhere.url)
    async with open_sidecar(settings) as sidecar:
        with pytest.raises(HoldfastError):
            await sidecar.check()
    assert elsewhere.sent == 1
    assert elsewhere.came == []


async def test_the_sidecar_is_not_sent_elsewhere_by_the_gateway(
    elsewhere: Elsewhere, short_dir: Path
) -> None:
    gateway = Gateway(short_dir / "sock")
    async with contextlib.aclosing(gateway):
        with pytest.raises(HoldfastError):
            await gateway.close_session("s")
    assert elsewhere.sent == 1
    assert elsewhere.came == []


async def test_the_gateway_hands_a_vendors_redirect_on_and_does_not_follow_it() -> None:
    """It would carry the real key."""
    async with served() as elsewhere:
        env = {"ANTHROPIC_API_KEY": REAL_KEY, "ANTHROPIC_BASE_URL": elsewhere.url}
        async with session(**env) as (_, client):
            for elsewhere.status in STATUSES:
                body = {"model": f"{elsewhere.url}/elsewhere"}
                answer = await client.post("/v1/messages", json=body)
                assert answer.status_code == elsewhere.status
        assert elsewhere.sent == len(STATUSES)
        assert elsewhere.came == []


PATHS = [
    "//elsewhere/v1/messages",
    "/v1/messages/../../elsewhere",
    "/v1/messages@elsewhere",
    "/v1/messages%2f..%2felsewhere",
    "/elsewhere",
]


async def test_a_sandbox_chooses_neither_the_vendor_nor_the_path() -> None:
    async with served() as elsewhere:
        env = {"ANTHROPIC_API_KEY": REAL_KEY, "ANTHROPIC_BASE_URL": elsewhere.url}
        async with session(**env) as (running, _):
            for path in PATHS:
                assert await raw_status(next(running.sockets.glob("*/sock")), path) == 404, path
        assert (elsewhere.sent, elsewhere.came) == (0, [])


async def raw_status(socket: Path, path: str) -> int:
    """Asked without a client that would tidy the path up."""
    async with asyncio.timeout(20):
        reader, writer = await asyncio.open_unix_connection(str(socket))
        head = f"POST {path} HTTP/1.1\r\nHost: elsewhere\r\nContent-Length: 2\r\n\r\n{{}}"
        writer.write(head.encode())
        line = await reader.readline()
        writer.close()
    return int(line.split()[1])
