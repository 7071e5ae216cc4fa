"""Requests to a model that are metered, and the vendor that answers them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID, uuid4

import httpx
from starlette.types import Receive, Scope, Send

from tests.support.gateway import (
    REAL_KEY,
    Gateway,
    GatewayProcess,
    client_of,
    gateway,
    gateway_process,
    serving,
)

MESSAGES = "/v1/messages"
RESPONSES = "/v1/responses"
CHAT = "/v1/chat/completions"
TOOLS = [{"name": "bash", "function": {"name": "bash"}}]  # as each of the protocols has it

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


def sse(*events: dict[str, Any] | str) -> bytes:
    lines = (each if isinstance(each, str) else json.dumps(each) for each in events)
    return "".join(f"data: {line}\n\n" for line in lines).encode()


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


@dataclass
class Exchangeable:
    """Stands where the vendor is, and lets each test have one of its own."""

    vendor: Vendor = field(default_factory=Vendor)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self.vendor(scope, receive, send)


def _keys(url: str) -> dict[str, str]:
    return {
        "ANTHROPIC_API_KEY": REAL_KEY,
        "ANTHROPIC_BASE_URL": url,
        "OPENAI_API_KEY": REAL_KEY,
        "OPENAI_BASE_URL": url,
    }


@asynccontextmanager
async def new_session(running: Gateway, vendor: Vendor) -> AsyncIterator[Metered]:
    """A session of a gateway whose requests go to the vendor."""
    session_id = uuid4()
    async with client_of(await running.open(session_id)) as client:
        try:
            yield Metered(running, session_id, client, vendor)
        finally:
            vendor.go_on.set()


@asynccontextmanager
async def metering_gateway() -> AsyncIterator[tuple[Gateway, Exchangeable]]:
    """A gateway for many tests, each of which exchanges the vendor."""
    place = Exchangeable()
    async with serving(place) as url, gateway(**_keys(url)) as running:
        yield running, place


@asynccontextmanager
async def metered(**env: str) -> AsyncIterator[Metered]:
    """A session of a gateway with settings of its own."""
    vendor = Vendor()
    async with (
        serving(vendor) as url,
        gateway(**{**_keys(url), **env}) as running,
        new_session(running, vendor) as here,
    ):
        yield here


@asynccontextmanager
async def metered_process() -> AsyncIterator[tuple[GatewayProcess, Metered]]:
    """A session of a gateway process, which may be killed."""
    vendor = Vendor()
    async with (
        serving(vendor) as url,
        gateway_process(**_keys(url)) as running,
        new_session(running, vendor) as here,
    ):
        yield running, here


async def break_off(here: Metered, path: str, after: bytes) -> None:
    """Hang up on an answer that has come this far."""
    here.vendor.body = sse(*ANTHROPIC)
    here.vendor.piece = here.vendor.stop_after = len(after)
    async with asyncio.timeout(10), here.client.stream("POST", path, json={}) as answer:
        assert await anext(answer.aiter_raw()) == after


def tokens(usage: dict[str, Any]) -> tuple[int, int, int, int]:
    names = ("input_tokens", "output_tokens", "cached_tokens", "cache_write_tokens")
    return tuple(usage[name] for name in names)
