"""What requests to a model use: counted at the gateway, whatever becomes of them on the way."""

from __future__ import annotations

import asyncio
import gzip
import json
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import httpx
import pytest
from starlette.types import Receive, Scope, Send

from tests.support.gateway import REAL_KEY, Gateway, chat, client_of, gateway, serving, until

MESSAGES = "/v1/messages"
RESPONSES = "/v1/responses"
CHAT = "/v1/chat/completions"
TOOLS = [{"name": "bash", "function": {"name": "bash"}}]  # as each of the protocols has it


def sse(*events: dict[str, Any] | str) -> bytes:
    lines = (each if isinstance(each, str) else json.dumps(each) for each in events)
    return "".join(f"data: {line}\n\n" for line in lines).encode()


ANTHROPIC = (
    {
        "type": "message_start",
        "message": {
            "model": "claude-sonnet-4-5-20250929",
            "usage": {
                "input_tokens": 10,
                "cache_read_input_tokens": 1000,
                "cache_creation_input_tokens": 100,
                "output_tokens": 1,
            },
        },
    },
    {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "usage"}},
    {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 50}},
    {"type": "message_stop"},
)
RESPONSE_USAGE = {
    "input_tokens": 1200,
    "input_tokens_details": {"cached_tokens": 200},
    "output_tokens": 30,
    "output_tokens_details": {"reasoning_tokens": 20},
}
RESPONSE = {"status": "completed", "model": "gpt-5", "output": [], "usage": RESPONSE_USAGE}
CHAT_USAGE = {
    "prompt_tokens": 700,
    "completion_tokens": 7,
    "prompt_tokens_details": {"cached_tokens": 500},
}
CHAT_CHUNKS = (
    {"choices": [{"delta": {"content": "hi"}, "finish_reason": None}], "usage": None},
    {"choices": [{"delta": {}, "finish_reason": "stop"}], "usage": None},
)
CHAT_TOLD = {"choices": [], "usage": CHAT_USAGE}


@dataclass
class Vendor:
    """Answers every request with the same bytes, in pieces; stops half-way when told to."""

    body: bytes = b""
    status: int = 200
    headers: dict[str, str] = field(default_factory=lambda: {"content-type": "text/event-stream"})
    piece: int = 11
    stop_after: int | None = None
    go_on: asyncio.Event = field(default_factory=asyncio.Event)
    requests: list[dict[str, Any]] = field(default_factory=list)
    seen_headers: list[dict[str, str]] = field(default_factory=list)
    url: str = ""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = b""
        while True:
            message = await receive()
            body += message.get("body", b"")
            if not message.get("more_body"):
                break
        self.requests.append(json.loads(body))
        self.seen_headers.append({k.decode(): v.decode() for k, v in scope["headers"]})
        headers = [(k.encode(), v.encode()) for k, v in self.headers.items()]
        await send({"type": "http.response.start", "status": self.status, "headers": headers})
        for start in range(0, len(self.body), self.piece):
            if self.stop_after is not None and start >= self.stop_after:
                await self.go_on.wait()
            data = self.body[start : start + self.piece]
            await send({"type": "http.response.body", "body": data, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


@dataclass
class Metered:
    gateway: Gateway
    session_id: UUID
    client: httpx.AsyncClient
    vendor: Vendor

    async def records(self, **params: Any) -> list[dict[str, Any]]:
        async with client_of(self.gateway.control) as control:
            answer = await control.get(f"/sessions/{self.session_id}/records", params=params)
        assert answer.status_code == 200, answer.text
        return [{"kind": r["kind"], **r["data"]} for r in answer.json()["records"]]

    async def usage(self) -> dict[str, Any]:
        """Of the one request there was."""
        [record] = await self.records(wait=10, idle=True)
        assert record["kind"] == "usage", record
        return record

    async def agree(self, **terms: Any) -> None:
        async with client_of(self.gateway.control) as control:
            answer = await control.put(f"/sessions/{self.session_id}", json=terms)
        assert answer.status_code == 200, answer.text


@asynccontextmanager
async def metered(**env: str) -> AsyncIterator[Metered]:
    """A session whose requests go to a vendor of the test's own."""
    vendor = Vendor()
    async with serving(vendor) as url:
        vendor.url = url
        keys = {
            "ANTHROPIC_API_KEY": REAL_KEY,
            "ANTHROPIC_BASE_URL": url,
            "OPENAI_API_KEY": REAL_KEY,
            "OPENAI_BASE_URL": url,
        }
        async with gateway(**{**keys, **env}) as running:
            session_id = uuid4()
            async with client_of(await running.open(session_id)) as client:
                try:
                    yield Metered(running, session_id, client, vendor)
                finally:
                    vendor.go_on.set()


async def break_off(here: Metered, path: str, after: bytes) -> None:
    """Hang up on an answer that has come this far."""
    here.vendor.body = sse(*ANTHROPIC)
    here.vendor.piece = here.vendor.stop_after = len(after)
    async with asyncio.timeout(10), here.client.stream("POST", path, json={}) as answer:
        assert await anext(answer.aiter_raw()) == after


def tokens(usage: dict[str, Any]) -> tuple[int, int, int, int]:
    names = ("input_tokens", "output_tokens", "cached_tokens", "cache_write_tokens")
    return tuple(usage[name] for name in names)


@pytest.mark.parametrize(
    ("path", "model", "body", "counted", "cost"),
    [
        (
            MESSAGES,
            "claude-sonnet-4-5",
            sse(*ANTHROPIC),
            (1110, 50, 1000, 100),
            (10 * 3 + 1000 * 0.3 + 100 * 3.75 + 50 * 15) / 1e6,
        ),
        (
            RESPONSES,
            "gpt-5",
            sse({"type": "response.created"}, {"type": "response.completed", "response": RESPONSE}),
            (1200, 30, 200, 0),
            (1000 * 1.25 + 200 * 0.125 + 30 * 10) / 1e6,
        ),
        (
            CHAT,
            "gpt-4.1-mini",
            sse(*CHAT_CHUNKS, CHAT_TOLD, "[DONE]"),
            (700, 7, 500, 0),
            (200 * 0.4 + 500 * 0.1 + 7 * 1.6) / 1e6,
        ),
    ],
)
async def test_a_stream_is_counted_and_priced_and_passed_on_as_it_is(
    path: str, model: str, body: bytes, counted: tuple[int, ...], cost: float
) -> None:
    async with metered() as here:
        here.vendor.body = body
        asked = {"model": model, "stream": True, "stream_options": {"include_usage": True}}
        answer = await here.client.post(path, json={**asked, "tools": TOOLS})
        assert answer.content == body
        assert here.vendor.requests == [{**asked, "tools": TOOLS}]
        usage = await here.usage()
        assert tokens(usage) == counted
        assert usage["cost"] == pytest.approx(cost)
        assert (usage["model"], usage["outcome"]) == (model, "completed")
        assert (usage["estimated"], usage["side"]) == (False, False)


@pytest.mark.parametrize(
    ("path", "body", "counted"),
    [
        (
            MESSAGES,
            {"type": "message", "model": "m", "usage": {"input_tokens": 5, "output_tokens": 6}},
            (5, 6, 0, 0),
        ),
        (RESPONSES, RESPONSE, (1200, 30, 200, 0)),
        (CHAT, {"choices": [], "usage": CHAT_USAGE}, (700, 7, 500, 0)),
    ],
)
async def test_an_answer_in_one_piece_is_counted(
    path: str, body: dict[str, Any], counted: tuple[int, ...]
) -> None:
    async with metered() as here:
        here.vendor.headers = {"content-type": "application/json"}
        here.vendor.body = json.dumps(body).encode()
        answer = await here.client.post(path, json={"model": "m"})
        assert answer.json() == body
        usage = await here.usage()
        assert tokens(usage) == counted
        assert usage["cost"] is None, "a model that stands in no table has no price"
        assert usage["side"], "no tools were offered"


async def test_a_stream_is_known_by_its_bytes_where_its_header_is_wrong() -> None:
    async with metered() as here:
        here.vendor.headers = {"content-type": "application/json"}
        here.vendor.body = sse(*ANTHROPIC)
        answer = await here.client.post(MESSAGES, json={"model": "m", "stream": True})
        assert answer.content == sse(*ANTHROPIC)
        assert tokens(await here.usage()) == (1110, 50, 1000, 100)


async def test_usage_that_a_chat_client_did_not_ask_for_is_asked_for_and_hidden() -> None:
    async with metered() as here:
        here.vendor.body = sse(*CHAT_CHUNKS, CHAT_TOLD, "[DONE]")
        asked = {"model": "m", "stream": True, "stream_options": {"other": 1}, "tools": TOOLS}
        answer = await here.client.post(CHAT, json=asked)
        assert answer.content == sse(*CHAT_CHUNKS, "[DONE]")
        options = {"other": 1, "include_usage": True}
        assert here.vendor.requests == [{**asked, "stream_options": options}]
        assert tokens(await here.usage()) == (700, 7, 500, 0)


async def test_an_answer_that_comes_packed_is_passed_on_packed_and_counted() -> None:
    async with metered() as here:
        here.vendor.headers["content-encoding"] = "gzip"
        here.vendor.body = gzip.compress(sse(*ANTHROPIC))
        answer = await here.client.post(MESSAGES, json={"model": "m", "tools": TOOLS})
        assert here.vendor.seen_headers[0]["accept-encoding"] == "identity"
        assert answer.content == sse(*ANTHROPIC)
        assert answer.headers["content-encoding"] == "gzip"
        assert tokens(await here.usage()) == (1110, 50, 1000, 100)


async def test_an_answer_that_cannot_be_read_is_estimated_and_said_to_be() -> None:
    async with metered() as here:
        here.vendor.headers["content-encoding"] = "br"
        here.vendor.body = b"not really brotli"
        body = {"model": "m", "tools": TOOLS, "messages": "x" * 4000}
        async with here.client.stream("POST", MESSAGES, json=body) as answer:
            assert b"".join([chunk async for chunk in answer.aiter_raw()]) == here.vendor.body
        usage = await here.usage()
        assert (usage["estimated"], usage["outcome"]) == (True, "completed")
        assert 1000 <= usage["input_tokens"] <= 1100


async def test_a_stream_is_counted_before_its_last_byte_arrives() -> None:
    """Whoever acts on the end of an answer finds it counted, though the vendor holds the line."""
    async with metered() as here:
        here.vendor.body = sse(*ANTHROPIC) + b": more\n\n"
        here.vendor.piece = len(sse(*ANTHROPIC))
        here.vendor.stop_after = 1
        async with asyncio.timeout(10), here.client.stream("POST", MESSAGES, json={}) as answer:
            assert await anext(answer.aiter_raw()) == sse(*ANTHROPIC)
            [record] = await here.records()
            assert (record["kind"], record["outcome"]) == ("usage", "completed")


async def test_a_stream_that_the_client_breaks_off_counts_what_was_seen() -> None:
    async with metered() as here:
        seen = sse(*ANTHROPIC[:2])
        await break_off(here, MESSAGES, seen)
        usage = await here.usage()
        assert (usage["outcome"], usage["estimated"]) == ("cut", True)
        assert tokens(usage) == (1110, 1, 1000, 100)


async def test_a_request_that_is_broken_off_before_the_vendor_said_anything_is_estimated() -> None:
    async with metered() as here:
        here.vendor.body = b"data: {}\n\n"
        here.vendor.stop_after = 0
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.5):
                await here.client.post(RESPONSES, json={"model": "gpt-5", "input": "x" * 400})
        usage = await here.usage()
        assert (usage["outcome"], usage["estimated"]) == ("cut", True)
        assert 100 <= usage["input_tokens"] <= 120


async def test_a_client_that_leaves_after_the_models_last_word_has_had_all_of_it() -> None:
    async with metered() as here:
        await break_off(here, MESSAGES, sse(*ANTHROPIC[:3]))
        usage = await here.usage()
        assert (usage["outcome"], usage["output_tokens"]) == ("completed", 50)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (MESSAGES, {"type": "error", "error": {"type": "overloaded_error", "message": "busy"}}),
        (
            RESPONSES,
            {
                "type": "response.failed",
                "response": {"status": "failed", "error": {"code": "x", "message": "busy"}},
            },
        ),
        (CHAT, {"error": {"message": "busy", "code": "x"}}),
    ],
)
async def test_an_error_in_the_middle_of_a_stream_is_a_failure(
    path: str, body: dict[str, Any]
) -> None:
    async with metered() as here:
        here.vendor.body = sse(body)
        await here.client.post(path, json={"model": "m", "stream": True, "tools": TOOLS})
        [record] = await here.records(wait=10)
        assert (record["kind"], record["status"]) == ("model.failed", 502)
        assert (record["message"], record["side"]) == ("busy", False)


async def test_a_stream_that_fails_after_it_began_counts_and_fails() -> None:
    async with metered() as here:
        error = {"type": "error", "error": {"type": "overloaded_error", "message": "busy"}}
        here.vendor.body = sse(ANTHROPIC[0], error)
        await here.client.post(MESSAGES, json={"model": "m"})
        usage, failed = await here.records(wait=10)
        assert (usage["outcome"], usage["input_tokens"]) == ("failed", 1110)
        assert (failed["kind"], failed["code"]) == ("model.failed", "overloaded_error")


async def test_a_stream_that_just_ends_is_a_failure() -> None:
    async with metered() as here:
        here.vendor.body = sse({"type": "response.created"})
        await here.client.post(RESPONSES, json={"model": "m", "stream": True})
        [record] = await here.records(wait=10)
        assert record["kind"] == "model.failed"
        assert "before it was complete" in record["message"]


async def test_an_error_of_the_vendor_is_recorded_without_the_key_it_quotes() -> None:
    async with metered() as here:
        said = f"Incorrect API key provided: {REAL_KEY}."
        here.vendor.status = 401
        here.vendor.headers = {"content-type": "application/json", "x-echo": f"Bearer {REAL_KEY}"}
        here.vendor.body = json.dumps({"error": {"message": said, "code": "bad_key"}}).encode()
        answer = await here.client.post(RESPONSES, json={"model": "m", "tools": TOOLS})
        assert answer.status_code == 401
        assert "Incorrect API key" in answer.text
        assert REAL_KEY not in answer.text + str(answer.headers)
        [record] = await here.records()
        assert (record["status"], record["code"]) == (401, "bad_key")
        assert "Incorrect API key" in record["message"]
        assert REAL_KEY not in json.dumps(record)


async def test_a_vendor_that_cannot_be_reached_is_recorded() -> None:
    async with metered(ANTHROPIC_BASE_URL="http://127.0.0.1:9") as here:
        assert (await here.client.post(MESSAGES, json={"model": "m"})).status_code == 502
        [record] = await here.records()
        assert (record["kind"], record["status"]) == ("model.failed", 502)
        assert "cannot reach the model API" in record["message"]


async def test_a_long_answer_is_read_within_bounds() -> None:
    async with metered() as here:
        huge = {"type": "response.in_progress", "padding": "x" * 9_000_000}
        done = {"type": "response.completed", "response": RESPONSE}
        here.vendor.body = sse(huge, done)
        here.vendor.piece = 65_536
        answer = await here.client.post(RESPONSES, json={"model": "gpt-5", "stream": True})
        assert answer.content == here.vendor.body
        assert tokens(await here.usage()) == (1200, 30, 200, 0)


@pytest.mark.parametrize(
    ("path", "body", "side"),
    [
        (RESPONSES, {"input": "say hi", "tools": TOOLS}, False),
        (RESPONSES, {"input": [{"type": "additional_tools", "tools": TOOLS}]}, False),
        (RESPONSES, {"input": "say hi"}, True),
        (
            RESPONSES,
            {"input": "a title", "tools": TOOLS, "text": {"format": {"schema": {}}}},
            True,
        ),
        (
            MESSAGES,
            {"messages": [{"role": "user", "content": "[SUGGESTION MODE: x]"}], "tools": TOOLS},
            True,
        ),
        (MESSAGES, {"messages": [{"role": "user", "content": "hi"}], "tools": TOOLS}, False),
        (MESSAGES, {"messages": 7, "tools": "odd"}, True),
    ],
)
async def test_what_a_harness_asks_for_on_the_side_is_told_as_such(
    path: str, body: dict[str, Any], side: bool
) -> None:
    async with metered() as here:
        here.vendor.status = 500
        await here.client.post(path, json={"model": "m", **body})
        [record] = await here.records(wait=10)
        assert record["side"] == side


async def test_a_request_is_of_the_turn_that_ran_when_it_began() -> None:
    async with metered() as here:
        first, second = str(uuid4()), str(uuid4())
        await here.agree(turn_id=first)
        here.vendor.body = sse(*ANTHROPIC)
        here.vendor.stop_after = 20
        begun = asyncio.ensure_future(here.client.post(MESSAGES, json={"model": "m"}))
        await until(lambda: len(here.vendor.requests) == 1)
        await here.agree(turn_id=second)
        here.vendor.go_on.set()
        await begun
        assert (await here.usage())["turn_id"] == first


async def test_what_is_no_use_of_a_model_is_not_counted() -> None:
    async with metered() as here:
        here.vendor.headers = {"content-type": "application/json"}
        here.vendor.body = b'{"input_tokens": 3}'
        await here.client.post("/v1/messages/count_tokens", json={})
        assert await here.records() == []


async def test_a_gateway_that_is_killed_says_what_it_was_in_the_middle_of() -> None:
    async with metered() as here:
        turn = str(uuid4())
        await here.agree(turn_id=turn)
        here.vendor.body = sse(*ANTHROPIC)
        here.vendor.stop_after = 20
        body = {"model": "claude-x", "tools": TOOLS}
        begun = asyncio.ensure_future(here.client.post(MESSAGES, json=body))
        await until(lambda: len(here.vendor.requests) == 1)
        await here.gateway.end(signal.SIGKILL)
        with pytest.raises(httpx.TransportError):
            await begun
        await here.gateway.start()
        [record] = await here.records()
        assert (record["kind"], record["turn_id"]) == ("model.lost", turn)
        assert (record["model"], record["side"]) == ("claude-x", False)


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    ("path", "body"),
    [
        (MESSAGES, {"messages": [{"role": "user", "content": "say hello"}], "tools": TOOLS}),
        (RESPONSES, {"input": "say hello", "tools": [{"type": "function", "name": "bash"}]}),
        (CHAT, chat("say hello")),
    ],
)
async def test_the_scripted_model_is_counted_by_the_same_means_and_costs_nothing(
    path: str, body: dict[str, Any], stream: bool
) -> None:
    async with metered(ANTHROPIC_API_KEY="", OPENAI_API_KEY="") as here:
        answer = await here.client.post(path, json={**body, "stream": stream})
        assert "hello" in answer.text
        assert path != CHAT or not stream or "usage" not in answer.text, "nobody asked for it"
        usage = await here.usage()
        assert usage["input_tokens"] > 1
        assert usage["output_tokens"] > 0
        assert (usage["cost"], usage["model"]) == (0.0, "scripted-1")
        assert (usage["outcome"], usage["estimated"]) == ("completed", False)


async def test_a_failure_of_the_scripted_model_is_recorded() -> None:
    async with metered(OPENAI_API_KEY="") as here:
        assert (await here.client.post(CHAT, json=chat("fail with 429"))).status_code == 429
        [record] = await here.records()
        assert (record["kind"], record["status"]) == ("model.failed", 429)


async def test_a_request_beyond_the_budget_is_refused_in_the_vendors_shape() -> None:
    async with metered() as here:
        await here.agree(budget={"tokens": 1000})
        here.vendor.body = sse(*ANTHROPIC)
        assert (await here.client.post(MESSAGES, json={"model": "m"})).status_code == 200
        for path, place in ((MESSAGES, "type"), (CHAT, "code"), (RESPONSES, "code")):
            refused = await here.client.post(path, json={"model": "m"})
            assert refused.status_code == 400
            error = refused.json()["error"]
            assert "1,160 of 1,000 tokens" in error["message"]
            assert error[place] in ("invalid_request_error", "budget_spent")
        assert len(here.vendor.requests) == 1, "nothing beyond it goes out"
        refusals = (await here.records())[1:]
        assert {(r["kind"], r["code"]) for r in refusals} == {("model.failed", "budget_spent")}
        assert (await here.client.post("/v1/messages/count_tokens", json={})).status_code == 200
        await here.agree(budget={"tokens": 5000})
        assert (await here.client.post(MESSAGES, json={"model": "m"})).status_code == 200


async def test_what_was_spent_is_known_to_the_next_gateway() -> None:
    async with metered() as here:
        await here.agree(budget={"cost": 0.001})
        here.vendor.body = sse(*ANTHROPIC)
        body = {"model": "claude-sonnet-4-5-20250929"}
        assert (await here.client.post(MESSAGES, json=body)).status_code == 200
        await here.gateway.end(signal.SIGKILL)
        await here.gateway.start()
        refused = await here.client.post(MESSAGES, json=body)
        assert refused.status_code == 400
        assert "$0.0015 of $0.001" in refused.json()["error"]["message"]


async def test_a_budget_of_dollars_is_not_for_a_model_without_a_price() -> None:
    async with metered() as here:
        await here.agree(budget={"cost": 5})
        refused = await here.client.post(CHAT, json={"model": "unheard-of"})
        assert refused.status_code == 400
        assert "unheard-of has no price" in refused.json()["error"]["message"]
        assert "HOLDFAST_MODEL_PRICES" in refused.json()["error"]["message"]
        assert here.vendor.requests == []


async def test_prices_of_ones_own_take_the_place_of_ours(tmp_path: Path) -> None:
    table = tmp_path / "prices.json"
    table.write_text(json.dumps({"models": {"my-*": {"input": 1, "output": 2}}}))
    async with metered(HOLDFAST_MODEL_PRICES=str(table)) as here:
        here.vendor.body = sse({"type": "response.completed", "response": RESPONSE})
        await here.client.post(RESPONSES, json={"model": "my-model", "stream": True})
        await here.client.post(RESPONSES, json={"model": "gpt-5", "stream": True})
        mine, other = await here.records()
        assert mine["cost"] == pytest.approx((1200 * 1 + 30 * 2) / 1e6)
        assert other["cost"] is None


@pytest.mark.parametrize("text", ["", "[]", '{"models": {"m": {"input": -1, "output": 1}}}'])
async def test_prices_that_cannot_be_read_keep_the_gateway_from_starting(
    tmp_path: Path, text: str
) -> None:
    table = tmp_path / "prices.json"
    table.write_text(text)
    running = Gateway(tmp_path, {"HOLDFAST_MODEL_PRICES": str(table)})
    process = await running.spawn()
    async with asyncio.timeout(20):
        assert await process.wait() == 1
    assert "HOLDFAST_MODEL_PRICES" in running.log
    assert "Traceback" not in running.log
