"""Followers: NDJSON and SSE, from any offset, woken at once, gone without a trace."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from uuid import UUID

import httpx
import pytest

from contracts.bodies import Turn
from tests.support import names
from tests.support.api.fault_injector import FaultyRun, numbered, planned
from tests.support.api.serving import Api, assert_error
from tests.support.services import until


@asynccontextmanager
async def following(api: Api, sid: UUID, **params: Any) -> AsyncIterator[AsyncIterator[str]]:
    async with api.http.stream(
        "GET", f"/sessions/{sid}/events", params={"follow": True, **params}
    ) as response:
        assert response.status_code == 200
        assert response.headers["content-type"].startswith("application/x-ndjson")
        yield response.aiter_lines()


async def take(lines: AsyncIterator[str], count: int) -> list[dict[str, Any]]:
    """The next events; heartbeats are passed over."""
    taken: list[dict[str, Any]] = []
    async with asyncio.timeout(10):
        while len(taken) < count:
            line = await anext(lines)
            if line:
                taken.append(json.loads(line))
    return taken


async def open_turn(api: Api, sid: UUID) -> tuple[Turn, FaultyRun]:
    return await api.start_run(sid, lambda run: None)


async def test_a_transcript_is_read_from_any_offset(api: Api) -> None:
    session = await api.new_session()
    await api.ended(await api.start(session.id))
    everything = await api.events(session.id)
    assert len(everything) == 8
    for after in (0, 3, 8, 99):
        assert await api.events(session.id, after) == everything[after:]
    limited = await api.http.get(f"/sessions/{session.id}/events", params={"after": 2, "limit": 3})
    assert [json.loads(line)["seq"] for line in limited.text.splitlines()] == [3, 4, 5]


async def test_a_transcript_longer_than_a_page_comes_whole(api: Api) -> None:
    session = await api.new_session()

    def plan(run: FaultyRun) -> None:
        words = [("message", {"role": "assistant", "text": str(n)}) for n in range(1_200)]
        run.journal.extend(numbered(*words, (names.TURN_COMPLETED, {})))

    with planned(api.injector, plan):
        await api.ended(await api.start(session.id))
    events = await api.events(session.id)
    assert [event["seq"] for event in events] == list(range(1, 1_204))
    async with following(api, session.id, after=1_100) as lines:
        assert [event["seq"] for event in await take(lines, 103)] == list(range(1_101, 1_204))


async def test_followers_get_events_as_they_are_stored(api: Api) -> None:
    session = await api.new_session()
    async with following(api, session.id) as first, following(api, session.id) as second:
        _, run = await open_turn(api, session.id)
        for lines in (first, second):
            assert [event["type"] for event in await take(lines, 2)] == [
                names.TURN_STARTED,
                "message",
            ]
        started = asyncio.get_running_loop().time()
        run.say("thought", text="hm")
        for lines in (first, second):
            assert (await take(lines, 1))[0]["text"] == "hm"
        # far under the 15 s after which a follower looks by itself
        assert asyncio.get_running_loop().time() - started < 5
        run.say(names.TURN_COMPLETED)
        assert (await take(first, 1))[0]["type"] == names.TURN_COMPLETED


async def test_a_follower_that_hangs_up_ends_nothing_but_itself(api: Api) -> None:
    session = await api.new_session()
    turn, run = await open_turn(api, session.id)
    async with following(api, session.id) as lines:
        await take(lines, 2)
    run.say("message", role="assistant", text="still here")
    async with following(api, session.id, after=2) as lines:
        assert (await take(lines, 1))[0]["text"] == "still here"
    run.say(names.TURN_COMPLETED)
    assert (await api.ended(turn)).state == "completed"


async def test_an_idle_stream_says_at_once_that_it_is_there(api: Api) -> None:
    session = await api.new_session()
    async with following(api, session.id) as lines, asyncio.timeout(5):
        assert await anext(lines) == ""


async def test_an_idle_stream_is_kept_alive(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("api.follow.HEARTBEAT", 0.05)
    session = await api.new_session()
    async with following(api, session.id) as lines, asyncio.timeout(5):
        assert [await anext(lines) for _ in range(4)] == ["", "", "", ""]


async def test_the_stream_of_a_deleted_session_ends(api: Api) -> None:
    session = await api.new_session()
    async with following(api, session.id) as lines:
        assert await anext(lines) == ""
        assert (await api.http.delete(f"/sessions/{session.id}")).status_code == 200
        async with asyncio.timeout(10):
            assert [line async for line in lines if line] == []


async def test_sse_has_ids_and_resumes_after_the_last_one(api: Api) -> None:
    session = await api.new_session()
    await api.ended(await api.start(session.id))
    everything = await api.events(session.id)
    headers = {"Accept": "text/event-stream"}
    path = f"/sessions/{session.id}/events"
    answer = await api.http.get(path, headers=headers)
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert parsed(answer) == [(event["seq"], event) for event in everything]
    resumed = await api.http.get(
        path, params={"after": 1}, headers={**headers, "Last-Event-ID": "6"}
    )
    assert [number for number, _ in parsed(resumed)] == [7, 8]
    wrong = await api.http.get(path, headers={**headers, "Last-Event-ID": "six"})
    assert_error(wrong, 400, "invalid_input")


def parsed(answer: httpx.Response) -> list[tuple[int, dict[str, Any]]]:
    found = []
    for block in answer.text.strip().split("\n\n"):
        number, data = block.split("\n")
        found.append((int(number.removeprefix("id: ")), json.loads(data.removeprefix("data: "))))
    return found


@pytest.mark.parametrize("query", ["after=-1", "after=x", "after=99999999999999999999", "limit=0"])
async def test_a_wrong_offset_is_refused(api: Api, query: str) -> None:
    session = await api.new_session()
    answer = await api.http.get(f"/sessions/{session.id}/events?{query}")
    assert_error(answer, 400, "invalid_input")


async def test_hundred_followers_leave_no_subscription_behind(api: Api) -> None:
    session = await api.new_session()
    async with httpx.AsyncClient(
        base_url=api.url, headers=api.http.headers, trust_env=False, timeout=30
    ) as http:

        async def visit() -> None:
            async with http.stream(
                "GET", f"/sessions/{session.id}/events", params={"follow": True}
            ) as response:
                await anext(response.aiter_lines())

        async with asyncio.TaskGroup() as group:
            for _ in range(100):
                group.create_task(visit())
    await until(
        lambda: not api.listener.has_subscribers(session.id),
        "the subscriptions end with their clients",
        30,
    )
