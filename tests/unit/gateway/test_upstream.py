"""Passing requests on to a vendor's model API, for which a small server stands in."""

from __future__ import annotations

import asyncio
import socket

import httpx
import pytest

from tests.support.gateway import DUMMY, REAL_KEY, Vendor, chat, session, until, vendor

MESSAGES = "/v1/messages"
CHAT = "/v1/chat/completions"


def anthropic(stand_in: Vendor) -> dict[str, str]:
    return {"ANTHROPIC_API_KEY": REAL_KEY, "ANTHROPIC_BASE_URL": stand_in.url}


def openai(stand_in: Vendor) -> dict[str, str]:
    return {"OPENAI_API_KEY": REAL_KEY, "OPENAI_BASE_URL": f"{stand_in.url}/v1/"}


async def test_the_real_key_goes_out_and_the_sandboxes_own_token_does_not() -> None:
    async with vendor() as stand_in:
        stand_in.first_byte.set()
        stand_in.go_on.set()
        async with session(**anthropic(stand_in)) as (running, client):
            answer = await client.post(
                f"{MESSAGES}?beta=true",
                content=b'{"model": "claude-x"}',
                headers={
                    "x-api-key": DUMMY,
                    "cookie": DUMMY,
                    "proxy-authorization": DUMMY,
                    "x-private": DUMMY,
                    "connection": "keep-alive, x-private",
                    "anthropic-version": "2023-06-01",
                    "anthropic-beta": "b1,b2",
                },
            )
            assert answer.text == "data: one\n\ndata: two\n\n"
            [(target, headers, body)] = stand_in.requests
            assert target == "POST /v1/messages?beta=true"
            assert body == b'{"model": "claude-x"}'
            assert headers["x-api-key"] == REAL_KEY
            assert headers["anthropic-version"] == "2023-06-01"
            assert headers["anthropic-beta"] == "b1,b2"
            assert "authorization" not in headers
            assert DUMMY not in str(headers)
            await until(lambda: "family=anthropic model=claude-x status=200" in running.log)
            assert REAL_KEY not in running.log
            assert DUMMY not in running.log


@pytest.mark.parametrize("path", ["/v1/responses", CHAT])
async def test_openai_gets_its_key_as_a_bearer(path: str) -> None:
    async with vendor() as stand_in:
        stand_in.first_byte.set()
        stand_in.go_on.set()
        async with session(**openai(stand_in)) as (_, client):
            await client.post(path, json={"model": "m"})
        [(target, headers, _)] = stand_in.requests
        assert target == f"POST {path}?"
        assert headers["authorization"] == f"Bearer {REAL_KEY}"
        assert DUMMY not in str(headers)


async def test_a_family_without_a_key_is_scripted() -> None:
    async with vendor() as stand_in, session(**anthropic(stand_in)) as (_, client):
        answer = await client.post(CHAT, json=chat("say hi"))
        assert answer.json()["choices"][0]["message"]["content"] == "hi"
        assert (await client.get("/v1/models")).json()["data"][0]["id"] == "scripted-1"
        assert stand_in.requests == []


async def test_an_empty_setting_is_no_setting() -> None:
    async with session(OPENAI_API_KEY="", OPENAI_BASE_URL="") as (_, client):
        answer = await client.post(CHAT, json=chat("say hi"))
    assert answer.json()["choices"][0]["message"]["content"] == "hi"


async def test_models_and_token_counts_are_the_vendors_when_there_is_a_key() -> None:
    async with vendor() as stand_in:
        stand_in.first_byte.set()
        stand_in.go_on.set()
        async with session(**anthropic(stand_in)) as (_, client):
            await client.post("/v1/messages/count_tokens", json={})
            await client.get("/v1/models", headers={"anthropic-version": "2023-06-01"})
        targets = [target for target, _, _ in stand_in.requests]
        assert targets == ["POST /v1/messages/count_tokens?", "GET /v1/models?"]


async def test_only_the_model_apis_paths_are_passed_on() -> None:
    async with vendor() as stand_in, session(**openai(stand_in)) as (_, client):
        assert (await client.get("/v1/files")).status_code == 404
        assert (await client.post("/v1/chat/completions/../../files")).status_code == 404
        assert stand_in.requests == []


async def test_a_stream_is_passed_on_byte_by_byte() -> None:
    async with vendor() as stand_in, session(**anthropic(stand_in)) as (_, client):
        stand_in.first_byte.set()
        async with asyncio.timeout(10), client.stream("POST", MESSAGES, json={}) as answer:
            chunks = answer.aiter_raw()
            assert await anext(chunks) == b"data: one\n\n"
            stand_in.go_on.set()
            assert b"".join([chunk async for chunk in chunks]) == b"data: two\n\n"


@pytest.mark.parametrize("answered", [False, True])
async def test_a_client_that_hangs_up_cancels_the_vendors_request(answered: bool) -> None:
    async with vendor() as stand_in, session(**anthropic(stand_in)) as (running, client):
        if answered:
            stand_in.first_byte.set()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.5):
                await client.post(MESSAGES, json={})
        assert len(stand_in.requests) == 1
        await until(stand_in.hung_up.is_set, seconds=3)
        await until(lambda: "status=499" in running.log, seconds=3)


async def test_an_error_of_the_vendor_is_passed_on_with_its_headers() -> None:
    async with vendor() as stand_in:
        stand_in.status = 429
        stand_in.headers = [
            (b"retry-after", b"7"),
            (b"set-cookie", b"a=b"),
            (b"x-many", b"1"),
            (b"x-many", b"2"),
        ]
        stand_in.first_byte.set()
        stand_in.go_on.set()
        async with session(**openai(stand_in)) as (_, client):
            answer = await client.post(CHAT, json=chat("say hi"))
    assert answer.status_code == 429
    assert answer.headers["retry-after"] == "7"
    assert answer.headers.get_list("x-many") == ["1", "2"]
    assert "set-cookie" not in answer.headers


async def test_a_body_that_only_the_vendor_can_read_is_passed_on_as_it_is() -> None:
    packed = b"\x28\xb5\x2f\xfd not really zstd"
    async with vendor() as stand_in:
        stand_in.first_byte.set()
        stand_in.go_on.set()
        async with session(**openai(stand_in)) as (_, client):
            headers = {"content-encoding": "zstd", "accept-encoding": ""}
            await client.post("/v1/responses", content=packed, headers=headers)
        [(_, sent, body)] = stand_in.requests
    assert body == packed
    assert sent["content-encoding"] == "zstd"


async def test_a_compressed_answer_is_never_forced_on_a_client() -> None:
    async with vendor() as stand_in:
        stand_in.first_byte.set()
        stand_in.go_on.set()
        async with session(**openai(stand_in)) as (_, client):
            del client.headers["accept-encoding"]
            await client.post(CHAT, json={})
            await client.post(CHAT, json={}, headers={"accept-encoding": "br"})
        encodings = [headers["accept-encoding"] for _, headers, _ in stand_in.requests]
    assert encodings == ["identity", "identity"], (
        "what is packed would have to be unpacked to count"
    )


@pytest.mark.parametrize("path", [MESSAGES, CHAT])
async def test_a_vendor_that_cannot_be_reached_is_a_clear_502(path: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        nowhere = f"http://127.0.0.1:{taken.getsockname()[1]}"
    keys = {"ANTHROPIC_API_KEY": REAL_KEY, "OPENAI_API_KEY": REAL_KEY}
    urls = {"ANTHROPIC_BASE_URL": nowhere, "OPENAI_BASE_URL": nowhere}
    async with session(**keys, **urls) as (running, client):
        answer = await client.post(path, json={})
        await until(lambda: "status=502" in running.log)
        assert REAL_KEY not in running.log + answer.text
    assert answer.status_code == 502
    assert "cannot reach the model API at 127.0.0.1" in answer.json()["error"]["message"]
    assert answer.json()["error"]["type"] == ("api_error" if path == MESSAGES else "server_error")


async def test_a_stream_that_breaks_off_does_not_look_complete() -> None:
    async with vendor() as stand_in, session(**anthropic(stand_in)) as (running, client):
        stand_in.breaks_off = True
        stand_in.first_byte.set()
        stand_in.go_on.set()
        with pytest.raises(httpx.TransportError):
            await client.post(MESSAGES, json={})
        await until(lambda: "status=502" in running.log)


async def test_no_header_of_the_answer_carries_the_real_key() -> None:
    """Some proxies in front of a model API send back what they were sent."""
    async with vendor() as stand_in:
        stand_in.first_byte.set()
        stand_in.go_on.set()
        stand_in.headers += [
            (b"x-echoed-key", REAL_KEY.encode()),
            (b"x-echoed-header", f"Bearer {REAL_KEY}; other".encode()),
            (b"request-id", b"req_1"),
        ]
        async with session(**anthropic(stand_in)) as (running, client):
            answer = await client.post(MESSAGES, json={"model": "claude-x"})
        assert answer.status_code == 200
        assert answer.headers["request-id"] == "req_1"
        assert REAL_KEY not in str(answer.headers.multi_items())
        assert REAL_KEY not in running.log
