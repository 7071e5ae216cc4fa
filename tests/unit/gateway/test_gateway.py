"""The gateway: its control API, its sockets, and the scripted model behind them."""

from __future__ import annotations

import asyncio
import gzip
import json
import stat
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from uuid import UUID, uuid4

import httpx
import pytest

from tests.support.gateway import (
    DUMMY,
    Gateway,
    ask,
    chat,
    client_of,
    content_of,
    gateway,
    ticking,
    until,
)


@pytest.fixture(scope="module")
async def shared() -> AsyncIterator[Gateway]:
    """One gateway for all tests."""
    async with gateway() as running:
        yield running


@pytest.fixture
async def path(shared: Gateway) -> Path:
    return await shared.open()


@pytest.fixture
async def client(path: Path) -> AsyncIterator[httpx.AsyncClient]:
    async with client_of(path) as client:
        yield client


def logged(running: Gateway, path: Path) -> list[str]:
    """The lines of one session's requests."""
    lines = running.log.splitlines()
    return [line for line in lines if f"session={path.parent.name} " in line and "status=" in line]


async def test_a_socket_is_opened_once_is_private_and_is_removed(shared: Gateway) -> None:
    session_id = uuid4()
    path = await shared.open(session_id)
    assert path == shared.sockets / str(session_id) / "sock"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(shared.control.stat().st_mode) == 0o600
    inode = path.stat().st_ino
    assert await shared.open(session_id) == path
    assert path.stat().st_ino == inode
    assert await ask(path, "say hi") == "hi"

    async with client_of(shared.control) as control:
        closed = await control.delete(f"/sessions/{session_id}")
        assert closed.json() == {"session_id": str(session_id), "closed": True}
        assert not path.parent.exists()
        again = await control.delete(f"/sessions/{session_id}")
        assert again.json()["closed"] is False


@pytest.mark.parametrize(
    ("name", "status"),
    [
        ("nonsense", 400),
        ("0", 400),
        ("01890000-0000-7000-8000-00000000000x", 400),
        ("..", 404),
        ("..%2Fx", 404),
    ],
)
async def test_a_session_id_that_is_no_uuid_is_refused(
    name: str, status: int, shared: Gateway
) -> None:
    before = set(shared.sockets.iterdir())
    async with client_of(shared.control) as control:
        for answer in (
            await control.put(f"/sessions/{name}"),
            await control.delete(f"/sessions/{name}"),
        ):
            assert answer.status_code == status
            assert answer.json()["error"].keys() >= {"code", "message", "hint", "retryable"}
    assert set(shared.sockets.iterdir()) == before


async def test_the_control_api_answers_what_it_does_not_know_in_the_error_shape(
    shared: Gateway,
) -> None:
    async with client_of(shared.control) as control:
        missing = await control.get("/nothing")
        wrong = await control.post(f"/sessions/{uuid4()}")
    assert missing.status_code == 404
    assert missing.json()["error"]["code"] == "not_found"
    assert wrong.status_code == 405
    assert wrong.json()["error"]["code"] == "bad_request"


async def test_a_socket_that_was_removed_is_opened_again(shared: Gateway, path: Path) -> None:
    path.unlink()
    assert await shared.open(UUID(path.parent.name)) == path
    assert await ask(path, "say back") == "back"


async def test_the_log_has_one_line_a_request_with_whose_it_was(shared: Gateway) -> None:
    paths = [await shared.open(), await shared.open()]
    for path in paths:
        await ask(path, "say hi")
    await until(lambda: all(logged(shared, path) for path in paths))
    for path in paths:
        [line] = logged(shared, path)
        assert f"session={path.parent.name} family=openai model=scripted-1 status=200 ms=" in line
    assert DUMMY not in shared.log


async def test_a_model_name_cannot_forge_a_log_line(
    shared: Gateway, path: Path, client: httpx.AsyncClient
) -> None:
    body = chat("say hi", model="x\nsession=forged status=200")
    await client.post("/v1/chat/completions", json=body)
    await until(lambda: bool(logged(shared, path)))
    assert "forged" not in shared.log


async def test_all_routes_of_the_model_apis_answer(client: httpx.AsyncClient) -> None:
    tools = [{"name": "Bash", "input_schema": {"properties": {"command": {}}}}]
    messages = {"tools": tools, "messages": [{"role": "user", "content": "say hi"}]}
    functions = [{"type": "function", "name": "shell", "parameters": {"properties": {"cmd": {}}}}]
    anthropic = (await client.post("/v1/messages?beta=true", json=messages)).json()
    assert anthropic["content"] == [{"type": "text", "text": "hi"}]
    count = (await client.post("/v1/messages/count_tokens", json=messages)).json()
    assert count["input_tokens"] == anthropic["usage"]["input_tokens"] > 0
    asked = {"tools": functions, "input": "say hi"}
    response = (await client.post("/v1/responses", json=asked)).json()
    assert response["output"][0]["content"][0]["text"] == "hi"
    assert content_of(await client.post("/v1/chat/completions", json=chat("say hi"))) == "hi"

    openai = (await client.get("/v1/models")).json()
    assert openai["object"] == "list"
    named = await client.get("/v1/models", headers={"anthropic-version": "2023-06-01"})
    assert named.json()["data"][0]["type"] == "model"
    assert (await client.head("/")).status_code == 200


async def test_what_is_not_there_is_refused_in_the_familys_shape(client: httpx.AsyncClient) -> None:
    missing = await client.post("/v1/embeddings", json={})
    wrong = await client.get("/v1/messages")
    anthropic = await client.get("/v1/x", headers={"anthropic-version": "2023-06-01"})
    assert (missing.status_code, wrong.status_code, anthropic.status_code) == (404, 405, 404)
    assert missing.json()["error"]["message"] == "There is no /v1/embeddings here."
    assert wrong.json()["error"]["type"] == "invalid_request_error"
    assert anthropic.json()["error"]["type"] == "not_found_error"


BAD_BODIES: list[tuple[bytes, str, int]] = [
    (b"{", "", 400),
    (b"[]", "", 400),
    (b"\xff\xfe", "", 400),
    (b"[" * 100_000, "", 400),
    (b"not gzip", "gzip", 400),
    (gzip.compress(b"{}" + b" " * 1000, mtime=0)[:-20], "gzip", 413),
    (b"anything", "zstd", 415),
]


@pytest.mark.parametrize(
    ("body", "encoding", "status"),
    BAD_BODIES,
    ids=["cut", "list", "no-utf8", "deep", "no-gzip", "cut-gzip", "zstd"],
)
async def test_a_bad_body_is_refused_and_the_next_request_is_served(
    body: bytes, encoding: str, status: int, client: httpx.AsyncClient
) -> None:
    headers = {"content-encoding": encoding} if encoding else {}
    answer = await client.post("/v1/messages", content=body, headers=headers)
    assert answer.status_code == status
    assert answer.json()["type"] == "error"
    assert content_of(await client.post("/v1/chat/completions", json=chat("say hi"))) == "hi"


async def test_a_compressed_body_is_read_but_never_beyond_the_limit(
    client: httpx.AsyncClient,
) -> None:
    headers = {"content-encoding": "gzip"}
    bomb = gzip.compress(b" " * (80 * 1024 * 1024))
    packed = gzip.compress(json.dumps(chat("say packed")).encode())
    answer = await client.post("/v1/chat/completions", content=packed, headers=headers)
    assert content_of(answer) == "packed"
    refused = await client.post("/v1/chat/completions", content=bomb, headers=headers)
    assert refused.status_code == 413


async def test_a_failure_on_demand_has_the_status_and_the_familys_shape(
    client: httpx.AsyncClient,
) -> None:
    for _ in range(2):
        answer = await client.post("/v1/chat/completions", json=chat("fail with 429"))
        assert answer.status_code == 429
        assert answer.json()["error"]["type"] == "rate_limit_error"


async def test_a_slow_answer_streams_as_it_goes(path: Path, client: httpx.AsyncClient) -> None:
    async with ticking(path, 60):
        pass  # it waits for less than that, and has read the first tick
    body = chat("wait 1 second", stream=True)
    async with client.stream("POST", "/v1/chat/completions", json=body) as answer:
        assert answer.headers["content-type"] == "text/event-stream"
        ticks = [line async for line in answer.aiter_lines() if "tick" in line]
    assert len(ticks) == 2


@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_hangs_up_ends_a_slow_answer(
    stream: bool, shared: Gateway, path: Path, client: httpx.AsyncClient
) -> None:
    body = chat("wait 60 seconds", stream=stream)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.5):
            await client.post("/v1/chat/completions", json=body)
    await until(lambda: "status=499" in "".join(logged(shared, path)), seconds=5)


async def test_closing_a_socket_cuts_off_its_own_requests_only(shared: Gateway) -> None:
    closed, kept = await shared.open(), await shared.open()
    async with AsyncExitStack() as stack:
        control = await stack.enter_async_context(client_of(shared.control))
        cut_off = await stack.enter_async_context(ticking(closed, 60))
        unharmed = await stack.enter_async_context(ticking(kept, 1))
        await control.delete(f"/sessions/{closed.parent.name}")
        with pytest.raises(httpx.TransportError):
            async for _ in cut_off:  # ticks that came before the cut
                pass
        assert "Waited 1 second." in "".join([line async for line in unharmed])
