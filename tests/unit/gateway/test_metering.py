"""What requests to a model use: counted at the gateway, whatever becomes of them on the way."""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from sidecar.gateway.server import GatewayServer
from tests.support.gateway import REAL_KEY, Gateway, ServedGateway, chat, until
from tests.support.metering import (
    ANTHROPIC,
    CHAT,
    CHAT_CHUNKS,
    CHAT_TOLD,
    CHAT_USAGE,
    MESSAGES,
    RESPONSE,
    RESPONSES,
    TOOLS,
    Exchangeable,
    Metered,
    Vendor,
    break_off,
    metered,
    metering_gateway,
    new_session,
    sse,
    tokens,
)


@pytest.fixture(scope="module")
async def shared() -> AsyncIterator[tuple[Gateway, Exchangeable]]:
    async with metering_gateway() as running:
        yield running


@pytest.fixture
async def here(shared: tuple[Gateway, Exchangeable]) -> AsyncIterator[Metered]:
    """A session of its own, whose requests go to a vendor of the test's own."""
    running, place = shared
    place.vendor = Vendor()
    async with new_session(running, place.vendor) as session:
        yield session


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
    here: Metered, path: str, model: str, body: bytes, counted: tuple[int, ...], cost: float
) -> None:
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
    here: Metered, path: str, body: dict[str, Any], counted: tuple[int, ...]
) -> None:
    here.vendor.headers = {"content-type": "application/json"}
    here.vendor.body = json.dumps(body).encode()
    answer = await here.client.post(path, json={"model": "m"})
    assert answer.json() == body
    usage = await here.usage()
    assert tokens(usage) == counted
    assert usage["cost"] is None, "a model that stands in no table has no price"
    assert usage["side"], "no tools were offered"


async def test_a_stream_is_known_by_its_bytes_where_its_header_is_wrong(here: Metered) -> None:
    here.vendor.headers = {"content-type": "application/json"}
    here.vendor.body = sse(*ANTHROPIC)
    answer = await here.client.post(MESSAGES, json={"model": "m", "stream": True})
    assert answer.content == sse(*ANTHROPIC)
    assert tokens(await here.usage()) == (1110, 50, 1000, 100)


async def test_usage_that_a_chat_client_did_not_ask_for_is_asked_for_and_hidden(
    here: Metered,
) -> None:
    here.vendor.body = sse(*CHAT_CHUNKS, CHAT_TOLD, "[DONE]")
    asked = {"model": "m", "stream": True, "stream_options": {"other": 1}, "tools": TOOLS}
    answer = await here.client.post(CHAT, json=asked)
    assert answer.content == sse(*CHAT_CHUNKS, "[DONE]")
    options = {"other": 1, "include_usage": True}
    assert here.vendor.requests == [{**asked, "stream_options": options}]
    assert tokens(await here.usage()) == (700, 7, 500, 0)


async def test_an_answer_that_comes_packed_is_passed_on_packed_and_counted(here: Metered) -> None:
    here.vendor.headers["content-encoding"] = "gzip"
    here.vendor.body = gzip.compress(sse(*ANTHROPIC))
    answer = await here.client.post(MESSAGES, json={"model": "m", "tools": TOOLS})
    assert here.vendor.seen_headers[0]["accept-encoding"] == "identity"
    assert answer.content == sse(*ANTHROPIC)
    assert answer.headers["content-encoding"] == "gzip"
    assert tokens(await here.usage()) == (1110, 50, 1000, 100)


async def test_an_answer_that_cannot_be_read_is_estimated_and_said_to_be(here: Metered) -> None:
    here.vendor.headers["content-encoding"] = "br"
    here.vendor.body = b"not really brotli"
    body = {"model": "m", "tools": TOOLS, "messages": "x" * 4000}
    async with here.client.stream("POST", MESSAGES, json=body) as answer:
        assert b"".join([chunk async for chunk in answer.aiter_raw()]) == here.vendor.body
    usage = await here.usage()
    assert (usage["estimated"], usage["outcome"]) == (True, "completed")
    assert 1000 <= usage["input_tokens"] <= 1100


async def test_a_stream_is_counted_before_its_last_byte_arrives(here: Metered) -> None:
    """Whoever acts on the end of an answer finds it counted, though the vendor holds the line."""
    here.vendor.body = sse(*ANTHROPIC) + b": more\n\n"
    here.vendor.piece = len(sse(*ANTHROPIC))
    here.vendor.stop_after = 1
    async with asyncio.timeout(10), here.client.stream("POST", MESSAGES, json={}) as answer:
        assert await anext(answer.aiter_raw()) == sse(*ANTHROPIC)
        [record] = await here.records()
        assert (record["kind"], record["outcome"]) == ("usage", "completed")


async def test_a_stream_that_the_client_breaks_off_counts_what_was_seen(here: Metered) -> None:
    seen = sse(*ANTHROPIC[:2])
    await break_off(here, MESSAGES, seen)
    usage = await here.usage()
    assert (usage["outcome"], usage["estimated"]) == ("cut", True)
    assert tokens(usage) == (1110, 1, 1000, 100)


async def test_a_request_that_is_broken_off_before_the_vendor_said_anything_is_estimated(
    here: Metered,
) -> None:
    here.vendor.body = b"data: {}\n\n"
    here.vendor.stop_after = 0
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.5):
            await here.client.post(RESPONSES, json={"model": "gpt-5", "input": "x" * 400})
    usage = await here.usage()
    assert (usage["outcome"], usage["estimated"]) == ("cut", True)
    assert 100 <= usage["input_tokens"] <= 120


async def test_a_client_that_leaves_after_the_models_last_word_has_had_all_of_it(
    here: Metered,
) -> None:
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
    here: Metered, path: str, body: dict[str, Any]
) -> None:
    here.vendor.body = sse(body)
    await here.client.post(path, json={"model": "m", "stream": True, "tools": TOOLS})
    [record] = await here.records(wait=10)
    assert (record["kind"], record["status"]) == ("model.failed", 502)
    assert (record["message"], record["side"]) == ("busy", False)


async def test_a_stream_that_fails_after_it_began_counts_and_fails(here: Metered) -> None:
    error = {"type": "error", "error": {"type": "overloaded_error", "message": "busy"}}
    here.vendor.body = sse(ANTHROPIC[0], error)
    await here.client.post(MESSAGES, json={"model": "m"})
    usage, failed = await here.records(wait=10)
    assert (usage["outcome"], usage["input_tokens"]) == ("failed", 1110)
    assert (failed["kind"], failed["code"]) == ("model.failed", "overloaded_error")


async def test_a_stream_that_just_ends_is_a_failure(here: Metered) -> None:
    here.vendor.body = sse({"type": "response.created"})
    await here.client.post(RESPONSES, json={"model": "m", "stream": True})
    [record] = await here.records(wait=10)
    assert record["kind"] == "model.failed"
    assert "before it was complete" in record["message"]


async def test_an_error_of_the_vendor_is_recorded_without_the_key_it_quotes(here: Metered) -> None:
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


async def test_a_long_answer_is_read_within_bounds(here: Metered) -> None:
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
    here: Metered, path: str, body: dict[str, Any], side: bool
) -> None:
    here.vendor.status = 500
    await here.client.post(path, json={"model": "m", **body})
    [record] = await here.records(wait=10)
    assert record["side"] == side


async def test_a_request_is_of_the_turn_that_ran_when_it_began(here: Metered) -> None:
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


async def test_what_is_no_use_of_a_model_is_not_counted(here: Metered) -> None:
    here.vendor.headers = {"content-type": "application/json"}
    here.vendor.body = b'{"input_tokens": 3}'
    await here.client.post("/v1/messages/count_tokens", json={})
    assert await here.records() == []


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


async def test_a_request_beyond_the_budget_is_refused_in_the_vendors_shape(here: Metered) -> None:
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


@pytest.mark.parametrize("of", ["tokens", "cost"])
async def test_a_budget_that_is_used_up_to_the_last_is_spent(here: Metered, of: str) -> None:
    here.vendor.body = sse(*ANTHROPIC)
    request = {"model": "claude-sonnet-4-5"}
    assert (await here.client.post(MESSAGES, json=request)).status_code == 200
    used = await here.usage()
    all_of_it = {"tokens": used["input_tokens"] + used["output_tokens"], "cost": used["cost"]}
    await here.agree(budget={of: all_of_it[of]})
    refused = await here.client.post(MESSAGES, json=request)
    assert refused.status_code == 400
    assert "budget is spent" in refused.json()["error"]["message"]
    assert len(here.vendor.requests) == 1
    await here.agree(budget={of: all_of_it[of] * 2})
    assert (await here.client.post(MESSAGES, json=request)).status_code == 200


async def test_a_budget_of_dollars_is_not_for_a_model_without_a_price(here: Metered) -> None:
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
def test_prices_that_cannot_be_read_keep_the_gateway_from_starting(
    tmp_path: Path, text: str
) -> None:
    table = tmp_path / "prices.json"
    table.write_text(text)
    settings = ServedGateway(tmp_path, {"HOLDFAST_MODEL_PRICES": str(table)}).settings()
    with pytest.raises(ValueError, match="HOLDFAST_MODEL_PRICES"):
        GatewayServer(settings)
