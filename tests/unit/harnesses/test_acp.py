"""The ACP connection against an agent server that misbehaves the way sandbox-agent can."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from contracts.errors import HarnessExited, PromptFailed, StreamGap
from sidecar.harnesses import acp as connections
from sidecar.harnesses.acp import AcpConnection


class FaultyAgentServer:
    """Speaks sandbox-agent's wire format and breaks it on demand: a fault injector."""

    def __init__(self) -> None:
        self.number = 0
        self.out: asyncio.Queue[bytes | None] = asyncio.Queue()
        self.asked: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self.seen_last_ids: list[str] = []
        self.hang_posts = False
        self.kept: list[tuple[int, bytes]] = []

    def drop(self, message: Any, *, forget: bool = False) -> None:
        """Say what the open connection is too slow for; the next one gets it, if it is kept."""
        self.number += 1
        if not forget:
            data = f"id: {self.number}\ndata: {json.dumps(message)}\n\n".encode()
            self.kept.append((self.number, data))

    def say(self, message: Any, *, skip: int = 0) -> None:
        self.number += 1 + skip
        self.out.put_nowait(f"id: {self.number}\ndata: {json.dumps(message)}\n\n".encode())

    async def post(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.asked.put_nowait(body)
        if self.hang_posts:
            await asyncio.Event().wait()
        return web.json_response({"jsonrpc": "2.0", "id": body.get("id"), "result": {"by": "post"}})

    async def stream(self, request: web.Request) -> web.StreamResponse:
        self.seen_last_ids.append(request.headers["last-event-id"])
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        after = int(request.headers["last-event-id"])
        for number, said in self.kept:
            if number > after:
                await response.write(said)
        with contextlib.suppress(ConnectionError):
            while (data := await self.out.get()) is not None:
                await response.write(data)
        return response


@pytest.fixture
def server() -> FaultyAgentServer:
    faulty = FaultyAgentServer()
    faulty.hang_posts = True
    return faulty


@pytest.fixture
async def acp(server: FaultyAgentServer, short_dir: Path) -> AsyncIterator[AcpConnection]:
    app = web.Application()
    app.router.add_post("/v1/acp/srv", server.post)
    app.router.add_get("/v1/acp/srv", server.stream)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.UnixSite(runner, str(short_dir / "s")).start()
    connector = aiohttp.UnixConnector(str(short_dir / "s"))
    async with aiohttp.ClientSession("http://agent", connector=connector) as http:
        yield AcpConnection(http, "srv", "pi", session="s")
    server.out.put_nowait(None)
    await runner.cleanup()


async def test_the_end_of_a_prompt_is_taken_from_sse_when_the_post_hangs(
    acp: AcpConnection, server: FaultyAgentServer
) -> None:
    async with asyncio.timeout(20), acp.listening():
        prompt = asyncio.ensure_future(acp.prompt("hello", acp.next_id()))
        asked = await server.asked.get()
        server.say({"jsonrpc": "2.0", "method": "session/update", "params": {"x": 1}})
        server.say({"jsonrpc": "2.0", "id": asked["id"], "result": {"stopReason": "end_turn"}})
        assert await prompt == {"stopReason": "end_turn"}
        assert [message["params"] for _, message in acp.drain()] == [{"x": 1}]


async def test_the_adapters_death_ends_the_prompt(
    acp: AcpConnection, server: FaultyAgentServer
) -> None:
    async with asyncio.timeout(20), acp.listening():
        prompt = asyncio.ensure_future(acp.prompt("hello", acp.next_id()))
        await server.asked.get()
        server.say({"jsonrpc": "2.0", "method": "_adapter/agent_exited", "params": {"code": 1}})
        with pytest.raises(HarnessExited, match="code"):
            await prompt


async def test_a_hole_in_the_ids_ends_the_prompt_as_a_gap(
    acp: AcpConnection, server: FaultyAgentServer
) -> None:
    async with asyncio.timeout(20), acp.listening():
        prompt = asyncio.ensure_future(acp.prompt("hello", acp.next_id()))
        await server.asked.get()
        server.say({"method": "session/update"})
        server.say({"method": "session/update"}, skip=7)
        with pytest.raises(StreamGap, match="7 events"):
            await prompt


async def test_a_broken_stream_is_taken_up_where_it_broke(
    acp: AcpConnection, server: FaultyAgentServer
) -> None:
    async with asyncio.timeout(20), acp.listening():
        prompt = asyncio.ensure_future(acp.prompt("hello", acp.next_id()))
        asked = await server.asked.get()
        server.say({"method": "one"})
        await acp.received()
        server.out.put_nowait(None)
        server.say({"jsonrpc": "2.0", "id": asked["id"], "result": {"stopReason": "end_turn"}})
        await prompt
    assert server.seen_last_ids == ["0", "1"]


async def test_an_error_answer_names_the_harness_and_the_reason(
    acp: AcpConnection, server: FaultyAgentServer
) -> None:
    async with asyncio.timeout(20), acp.listening():
        prompt = asyncio.ensure_future(acp.prompt("hello", acp.next_id()))
        asked = await server.asked.get()
        error = {"code": -32000, "message": "out of cheese", "data": {"detail": "really"}}
        server.say({"jsonrpc": "2.0", "id": asked["id"], "error": error})
        with pytest.raises(PromptFailed, match=r"pi: out of cheese .*really"):
            await prompt


async def test_a_line_of_megabytes_and_one_that_is_no_json_are_taken(
    acp: AcpConnection, server: FaultyAgentServer
) -> None:
    async with asyncio.timeout(20), acp.listening():
        server.say({"method": "big", "text": "x" * 3_000_000})
        server.number += 1
        server.out.put_nowait(f"id: {server.number}\ndata: {{broken\n\n".encode())
        _, big = await acp.received()
        _, broken = await acp.received()
    assert len(big["text"]) == 3_000_000
    assert broken == {"unparsed": "{broken"}


@pytest.fixture
def answering(server: FaultyAgentServer, monkeypatch: pytest.MonkeyPatch) -> FaultyAgentServer:
    """A POST is answered at once, whatever the stream does."""
    monkeypatch.setattr(connections, "SSE_LAG_SECONDS", 0.2)
    monkeypatch.setattr(connections, "RECONNECT_SECONDS", 0.01)
    server.hang_posts = False
    return server


async def test_messages_that_were_dropped_before_the_answer_are_fetched(
    acp: AcpConnection, answering: FaultyAgentServer
) -> None:
    async with asyncio.timeout(20), acp.listening():
        prompt = asyncio.ensure_future(acp.prompt("hello", acp.next_id()))
        asked = await answering.asked.get()
        answering.say({"method": "session/update", "params": {"x": 1}})
        answering.drop({"method": "session/update", "params": {"x": 2}})
        answering.drop({"id": asked["id"], "result": {"stopReason": "end_turn"}})
        assert await prompt == {"stopReason": "end_turn"}
        assert [message["params"]["x"] for _, message in acp.drain()] == [1, 2]


async def test_a_prompt_whose_last_messages_are_lost_is_not_answered(
    acp: AcpConnection, answering: FaultyAgentServer
) -> None:
    async with asyncio.timeout(20), acp.listening():
        prompt = asyncio.ensure_future(acp.prompt("hello", acp.next_id()))
        asked = await answering.asked.get()
        answering.say({"method": "session/update", "params": {"x": 1}})
        for x in range(7):
            answering.drop({"method": "session/update", "params": {"x": x}}, forget=True)
        answering.drop({"id": asked["id"], "result": {"stopReason": "end_turn"}})
        with pytest.raises(StreamGap, match="7 events"):
            await prompt


async def test_an_answer_that_never_comes_by_the_stream_is_a_gap(
    acp: AcpConnection, answering: FaultyAgentServer
) -> None:
    async with asyncio.timeout(20), acp.listening():
        prompt = asyncio.ensure_future(acp.prompt("hello", acp.next_id()))
        await answering.asked.get()
        with pytest.raises(StreamGap, match="last events"):
            await prompt


async def test_a_slow_reader_hears_everything_before_the_answer(
    acp: AcpConnection, answering: FaultyAgentServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "MOST_WAITING", 2)
    async with asyncio.timeout(20), acp.listening():
        prompt = asyncio.ensure_future(acp.prompt("hello", acp.next_id()))
        asked = await answering.asked.get()
        for x in range(6):
            answering.say({"method": "session/update", "params": {"x": x}})
        answering.say({"id": asked["id"], "result": {"stopReason": "end_turn"}})
        heard: list[int] = []
        for _ in range(6):
            await asyncio.sleep(0.15)
            assert not prompt.done() or len(heard) >= 4
            heard.append((await acp.received())[1]["params"]["x"])
        assert await prompt == {"stopReason": "end_turn"}
        assert heard == list(range(6))
