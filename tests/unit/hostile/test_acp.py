"""A broken or malicious sandbox-agent, at the wire: whatever it sends, the turn ends within bounds
and says only what belongs to it."""

from __future__ import annotations

import asyncio
import gzip
import json
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from contracts.errors import HarnessExited, StreamGap, TurnLimit
from contracts.events import dumps
from sidecar.harnesses import acp, sse, untrusted
from sidecar.providers.base import Endpoint
from sidecar.runs.bounds import Bounds
from sidecar.runs.permissions import MOST_PENDING
from tests.support.hostile_agent import (
    REQUEST,
    SESSION,
    Hearing,
    HostileAgent,
    connected,
    notification,
    text,
)
from tests.support.services import until

FAST = 1e9


async def turn(agent: HostileAgent, directory: Path, **more: Any) -> tuple[Hearing, Any]:
    hearing = Hearing(directory, directory / "agent", **more)
    return hearing, await hearing.heard()


def deep(levels: int) -> bytes:
    return b'{"method":"x","params":' + b"[" * levels + b"]" * levels + b"}"


STRANGE: dict[str, bytes] = {
    "no JSON": b"{broken",
    "JSON that is no object": b"[1, 2, 3]",
    "a number": b"7",
    "null": b"null",
    "NaN": b'{"method": "x", "params": NaN}',
    "a number of ten thousand digits": b'{"method": "x", "params": ' + b"9" * 10_000 + b"}",
    "bad UTF-8": b'{"method": "x", "params": "\xff\xfe\xc0\xaf"}',
    "lone surrogates": b'{"method": "x", "params": "\\ud800"}',
    "NUL and control characters": b'{"method": "x", "params": "\\u0000\\u0007\\u001b[2J"}',
    "more levels than pydantic takes": deep(300),
    "more levels than Python takes": deep(100_000),
    "a method that is no text": b'{"method": {"a": 1}}',
    "parameters of another kind": b'{"method": "session/update", "params": [1]}',
    "an update of no known kind": dumps(notification(sessionUpdate="dance", content=1)),
    "a chunk without its content": dumps(notification(sessionUpdate="agent_message_chunk")),
    "a tool call whose id is a list": dumps(
        notification(sessionUpdate="tool_call", toolCallId=[1], title=7)
    ),
    "an answer to nothing that was asked": b'{"id": "never-asked", "result": {}}',
    "an answer with an object for an id": b'{"id": {"a": [1]}, "result": {}}',
    "a huge id": b'{"id": "' + b"i" * 1_000_000 + b'", "result": {}}',
    "a request that nobody knows": b'{"id": 1, "method": "fs/read_text_file", "params": {}}',
}


@pytest.mark.parametrize("name", STRANGE)
async def test_what_cannot_be_understood_is_kept_as_raw_and_the_turn_goes_on(
    agent: HostileAgent, short_dir: Path, name: str
) -> None:
    agent.raw(STRANGE[name])
    agent.update(**text("after it"))
    agent.end()
    hearing, end = await turn(agent, short_dir)
    assert end == "end_turn"
    kinds = [event["type"] for event in hearing.events()]
    assert kinds == ["raw", "message"]
    assert hearing.events()[1]["text"] == "after it"


async def test_updates_of_another_session_are_no_part_of_the_conversation(
    agent: HostileAgent, short_dir: Path
) -> None:
    stranger = "00000000-0000-7000-8000-000000000001"
    forged = notification(stranger, **text("from another session"))
    forged |= {"session_id": stranger, "turn_id": stranger, "seq": 1}
    agent.say(forged)
    agent.end()
    hearing, end = await turn(agent, short_dir)
    assert end == "end_turn"
    (event,) = hearing.events()
    assert event["type"] == "raw"
    request = hearing.journal.request
    assert event["session_id"] == str(request.session_id)
    assert event["turn_id"] == str(request.turn_id)
    assert "seq" not in event


async def test_an_id_that_came_before_is_not_heard_twice(
    agent: HostileAgent, short_dir: Path
) -> None:
    agent.update(**text("once"))
    for number in (b"1", b"0", b"1"):
        agent.raw(json.dumps(notification(**text("twice"))).encode(), number)
    agent.number = 1
    agent.end()
    hearing, end = await turn(agent, short_dir)
    assert end == "end_turn"
    assert [event["text"] for event in hearing.events()] == ["once"]


@pytest.mark.parametrize("number", [b"999999999", b"9" * 30, b"9" * 100_000])
async def test_an_id_from_far_ahead_ends_the_turn_as_a_gap(
    agent: HostileAgent, short_dir: Path, number: bytes
) -> None:
    agent.raw(b"{}", number)
    _, end = await turn(agent, short_dir)
    assert isinstance(end, StreamGap)


async def test_an_event_without_end_ends_the_turn_within_bounded_memory(
    agent: HostileAgent, short_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sse, "MOST_BYTES", 4 << 20)
    agent.flooding = lambda: b"x" * 65_536
    agent.out.put_nowait(b"data: ")
    tracemalloc.start()
    try:
        hearing, end = await turn(agent, short_dir)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert isinstance(end, HarnessExited)
    assert "more than 4194304 bytes" in end.message
    assert peak < 32 << 20
    assert hearing.sandbox.killed


async def test_packed_data_is_not_blown_up(agent: HostileAgent, short_dir: Path) -> None:
    """256 MiB of zeros are a quarter of a megabyte, packed."""
    agent.stream_headers = {"content-encoding": "gzip"}
    agent.out.put_nowait(gzip.compress(bytes(256 << 20), 1, mtime=0))
    for _ in range(10):
        agent.out.put_nowait(None)
    tracemalloc.start()
    try:
        _, end = await turn(agent, short_dir)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert isinstance(end, HarnessExited)
    assert peak < 32 << 20


async def test_an_answer_without_end_is_not_read_to_its_end(
    agent: HostileAgent, short_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(untrusted, "ANSWER_BYTES", 1 << 20)
    sent = 0

    class Endless(web.StreamResponse):
        async def write_eof(self, data: bytes = b"") -> None:
            nonlocal sent
            while True:
                await self.write(b"x" * 65_536)
                sent += 65_536

    agent.answer_post = Endless
    endpoint = Endpoint("http://sandbox", socket=str(short_dir / "agent"))
    async with connected(endpoint) as connection, connection.listening():
        asked = asyncio.ensure_future(connection.prompt("go", REQUEST))
        async with asyncio.timeout(30):
            await agent.asked.get()
            await until(lambda: sent > 1 << 20, "it answers without end", 20)
            agent.end()
            assert (await asked)["stopReason"] == "end_turn"
    assert sent < 64 << 20


def tool_call(number: int) -> dict[str, Any]:
    return notification(sessionUpdate="tool_call", toolCallId=f"c{number}", title="t")


def flood_of(message: Callable[[int], dict[str, Any]], agent: HostileAgent) -> Callable[[], bytes]:
    def one() -> bytes:
        agent.number += 1
        return b"id: %d\ndata: %b\n\n" % (agent.number, dumps(message(agent.number)))

    return one


async def test_a_flood_of_events_fails_the_turn_and_keeps_what_was_said(
    agent: HostileAgent, short_dir: Path
) -> None:
    agent.flooding = flood_of(tool_call, agent)
    agent.out.put_nowait(b":\n\n")
    bounds = Bounds(events_per_second=FAST, turn_events=500)
    hearing, end = await turn(agent, short_dir, bounds=bounds)
    assert isinstance(end, TurnLimit)
    assert "500 events" in end.message
    assert "HOLDFAST_TURN_EVENTS" in end.hint
    kept = [event["tool_call_id"] for event in hearing.events()]
    assert kept == [f"c{number}" for number in range(1, 502)]
    assert hearing.sandbox.killed, "the harness goes on"


async def test_a_flood_of_bytes_fails_the_turn(agent: HostileAgent, short_dir: Path) -> None:
    big = "x" * 1_000_000
    agent.flooding = flood_of(lambda n: {"method": "noise", "params": big}, agent)
    agent.out.put_nowait(b":\n\n")
    bounds = Bounds(events_per_second=FAST, turn_bytes=10_000_000)
    hearing, end = await turn(agent, short_dir, bounds=bounds)
    assert isinstance(end, TurnLimit)
    assert "HOLDFAST_TURN_BYTES" in end.hint
    assert hearing.journal.size < 13_000_000


async def test_a_flood_of_what_becomes_no_event_fails_the_turn_too(
    agent: HostileAgent, short_dir: Path
) -> None:
    quiet = {"sessionUpdate": "user_message_chunk", "content": text("x" * 100_000)["content"]}
    agent.flooding = flood_of(lambda n: notification(**quiet), agent)
    agent.out.put_nowait(b":\n\n")
    bounds = Bounds(events_per_second=FAST, turn_bytes=10_000_000)
    hearing, end = await turn(agent, short_dir, bounds=bounds)
    assert isinstance(end, TurnLimit)
    assert hearing.events() == []


async def test_a_flood_is_held_up_at_its_source_and_no_other_session_is_slowed(
    agent: HostileAgent, short_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(acp, "MOST_WAITING", 100)
    asleep = asyncio.Event()

    async def for_ever(_seconds: float) -> None:
        asleep.set()
        await asyncio.Event().wait()

    agent.flooding = flood_of(tool_call, agent)
    agent.out.put_nowait(b":\n\n")
    flooded = Hearing(
        short_dir, short_dir / "agent", bounds=Bounds(events_per_second=1), sleep=for_ever
    )
    heard = asyncio.ensure_future(flooded.heard())
    async with asyncio.timeout(30):
        await asleep.wait()
    await until(lambda: flooded.connection._is_full(), "nothing more is read")
    before = agent.sent

    other = HostileAgent()
    async with other.served(short_dir / "other"):
        for number in range(1000):
            other.update(**text(f"{number} "))
        other.end()
        hearing = Hearing(short_dir, short_dir / "other")
        assert await hearing.heard() == "end_turn"
    said = "".join(event["text"] for event in hearing.events())
    assert said == "".join(f"{number} " for number in range(1000))

    # what the sockets between them hold, and no more
    assert agent.sent - before < 20_000
    assert flooded.connection._received.qsize() <= 101
    assert flooded.journal.last_n < 30
    heard.cancel()
    await asyncio.wait({heard})


async def test_small_pieces_of_output_are_joined(agent: HostileAgent, short_dir: Path) -> None:
    for number in range(2000):
        delta = {"terminal_output_delta": {"data": f"{number}\n"}}
        agent.update(sessionUpdate="tool_call_update", toolCallId="c", _meta=delta)
    agent.update(sessionUpdate="tool_call_update", toolCallId="c", status="completed")
    agent.end()
    hearing, end = await turn(agent, short_dir)
    assert end == "end_turn"
    *updates, result = hearing.events()
    assert len(updates) < 500
    everything = "".join(f"{number}\n" for number in range(2000))
    assert "".join(event["output_delta"] for event in updates) == everything
    assert result["output"] == everything


def permission(number: int, **more: Any) -> dict[str, Any]:
    options = [{"optionId": "yes", "name": "Yes", "kind": "allow_once"}]
    params = {"sessionId": SESSION, "options": options, "toolCall": {"toolCallId": "c"}}
    method = "session/request_permission"
    return {"jsonrpc": "2.0", "id": number, "method": method, "params": params | more}


async def test_a_flood_of_permission_requests_fails_the_turn(
    agent: HostileAgent, short_dir: Path
) -> None:
    for number in range(MOST_PENDING + 1):
        agent.say(permission(number))
    hearing, end = await turn(agent, short_dir, permissions="ask")
    assert isinstance(end, TurnLimit)
    assert len(hearing.events()) == MOST_PENDING


@pytest.mark.parametrize(
    "params",
    [
        None,
        [],
        "x",
        {"options": "x"},
        {"options": [1, None, {"optionId": {"a": 1}}], "toolCall": "x"},
        {"options": [], "toolCall": {"toolCallId": 7, "title": {"a": 1}}},
    ],
)
async def test_a_malformed_permission_request_is_told_and_withdrawn(
    agent: HostileAgent, short_dir: Path, params: Any
) -> None:
    agent.say({"jsonrpc": "2.0", "id": 5, "method": "session/request_permission", "params": params})
    agent.end()
    hearing, end = await turn(agent, short_dir, permissions="ask")
    assert end == "end_turn"
    assert [event["type"] for event in hearing.events()] == ["raw"]
    assert agent.responses == [
        {"jsonrpc": "2.0", "id": 5, "result": {"outcome": {"outcome": "cancelled"}}}
    ]


async def test_what_is_said_after_the_end_is_not_waited_for(
    agent: HostileAgent, short_dir: Path
) -> None:
    agent.update(**text("before"))
    agent.end()
    agent.update(**text("after"))
    agent.end(stopReason="again")
    hearing, end = await turn(agent, short_dir)
    assert end == "end_turn"
    assert "".join(event["text"] for event in hearing.events()) in ("before", "beforeafter")


async def test_a_stream_that_never_says_anything_ends_with_the_turns_time(
    agent: HostileAgent, short_dir: Path
) -> None:
    agent.flooding = lambda: b":\n\n"
    agent.out.put_nowait(b":\n\n")
    _, end = await turn(agent, short_dir, bounds=Bounds(turn_seconds=0.5))
    assert isinstance(end, TurnLimit)
    assert "HOLDFAST_TURN_SECONDS" in end.hint


async def test_a_turn_can_be_cancelled_in_the_middle_of_a_flood(
    agent: HostileAgent, short_dir: Path
) -> None:
    agent.flooding = flood_of(tool_call, agent)
    agent.out.put_nowait(b":\n\n")
    bounds = Bounds(events_per_second=20, turn_events=5000)
    hearing = Hearing(short_dir, short_dir / "agent", bounds=bounds)
    heard = asyncio.ensure_future(hearing.heard())
    await until(lambda: hearing.journal.last_n > 200, "it floods", 30)
    hearing.cancelled.set()
    end = await heard
    assert isinstance(end, TurnLimit | HarnessExited)


async def test_an_event_that_is_too_large_is_cut_and_says_so(
    agent: HostileAgent, short_dir: Path
) -> None:
    agent.update(**text("é" * 100_000))
    agent.end()
    hearing, end = await turn(agent, short_dir, bounds=Bounds(event_bytes=100_000))
    assert end == "end_turn"
    (event,) = hearing.events()
    assert event["type"] == "raw"
    assert event["data"]["type"] == "message"
    assert event["data"]["bytes"] > 600_000
    assert hearing.journal.size < 100_000


async def test_a_line_of_five_megabytes_is_stored_whole(
    agent: HostileAgent, short_dir: Path
) -> None:
    agent.update(**text("x" * 5_000_000))
    agent.end()
    hearing, end = await turn(agent, short_dir)
    assert end == "end_turn"
    assert "".join(event["text"] for event in hearing.events()) == "x" * 5_000_000


async def test_words_of_the_harness_are_of_bounded_length(
    agent: HostileAgent, short_dir: Path
) -> None:
    agent.say({"id": REQUEST, "error": {"message": "m" * 1_000_000, "data": ["d" * 1_000_000]}})
    _, end = await turn(agent, short_dir)
    assert len(end.message) < 5000
