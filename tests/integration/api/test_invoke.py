"""POST /invoke: send, steer, cancel, attach."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from uuid import UUID

import httpx
import pytest

from contracts.bodies import MAX_PROMPT_CHARS
from tests.support import names
from tests.support.api.fault_injector import FaultyRun, planned
from tests.support.api.serving import NOBODY, Api, assert_error
from tests.support.services import until


def request(
    prompt: object = None, session_id: UUID | None = None, force: bool = False, **parameters: str
) -> dict[str, Any]:
    messages = [] if prompt is None else [{"role": "user", "content": prompt}]
    return {
        "session_id": str(session_id) if session_id else None,
        "data": {"inputs": {"messages": messages}, "parameters": parameters},
        "force": force,
    }


def events_of(answer: httpx.Response) -> list[dict[str, Any]]:
    assert answer.status_code == 200, answer.text
    return [json.loads(line) for line in answer.text.splitlines() if line]


@asynccontextmanager
async def invoked(api: Api, body: dict[str, Any]) -> AsyncIterator[tuple[UUID, UUID, Any]]:
    """An open answer: its session, its turn, and its events as they come."""
    async with api.http.stream("POST", "/invoke", json=body) as response:
        assert response.status_code == 200

        async def events() -> AsyncIterator[dict[str, Any]]:
            async for line in response.aiter_lines():
                if line:
                    yield json.loads(line)

        headers = response.headers
        yield UUID(headers["x-session-id"]), UUID(headers["x-turn-id"]), events()


def endless(run: FaultyRun) -> None:
    run.say(names.SANDBOX_CREATING, provider="local")


async def test_sending_makes_a_session_and_streams_its_turn(api: Api) -> None:
    body = request("write\n\n  hello\0 to a.txt", harness="pi")
    answer = await api.http.post("/invoke", json=body)
    events = events_of(answer)
    assert [event["seq"] for event in events] == list(range(1, 9))
    assert events[-1]["type"] == names.TURN_COMPLETED
    session = (await api.http.get(f"/sessions/{answer.headers['x-session-id']}")).json()
    assert (session["title"], session["harness"]) == ("write hello to a.txt", "pi")
    assert {event["turn_id"] for event in events} == {answer.headers["x-turn-id"]}
    again = await api.http.post("/invoke", json=request("more", UUID(session["id"])))
    assert [event["seq"] for event in events_of(again)] == list(range(9, 17))


@pytest.mark.parametrize(
    ("messages", "prompt"),
    [
        ([{"content": "plain"}], "plain"),
        ([{"role": "user", "content": "old"}, {"role": "user", "content": "new"}], "new"),
        ([{"role": "user", "content": "mine"}, {"role": "assistant", "content": "its"}], "mine"),
        (
            [
                {
                    "content": [
                        {"type": "text", "text": "a"},
                        {"type": "image"},
                        {"type": "text", "text": "b"},
                    ]
                }
            ],
            "a\nb",
        ),
    ],
)
async def test_the_prompt_is_the_last_message_of_the_user(
    api: Api, messages: list[object], prompt: str
) -> None:
    answer = await api.http.post("/invoke", json={"data": {"inputs": {"messages": messages}}})
    assert events_of(answer)[1]["text"] == prompt


async def test_the_first_bytes_come_before_the_turn_has_ended(api: Api) -> None:
    with planned(api.injector, endless):
        async with invoked(api, request("go")) as (sid, tid, events), asyncio.timeout(10):
            assert (await anext(events))["type"] == names.TURN_STARTED
            await until(lambda: tid in api.injector.runs, "the run starts")
            await api.http.post(f"/sessions/{sid}/turns/{tid}/cancel")
            rest = [event["type"] async for event in events]
    assert rest[-1] == names.TURN_CANCELLED


async def test_hanging_up_detaches_and_attaching_gets_the_whole_turn(api: Api) -> None:
    with planned(api.injector, endless):
        async with invoked(api, request("go")) as (sid, tid, events):
            await anext(events)
        await until(lambda: tid in api.injector.runs, "the run starts")
    run = api.injector.runs[tid]
    assert run.cancels == 0
    async with invoked(api, request(None, sid, force=True)) as (_, attached, events):
        assert attached == tid
        async with asyncio.timeout(10):
            assert (await anext(events))["type"] == names.TURN_STARTED
            run.say(names.TURN_COMPLETED)
            types = [event["type"] async for event in events]
    assert types == ["message", names.SANDBOX_CREATING, names.TURN_COMPLETED]


async def test_sending_while_a_turn_runs_is_refused_and_steering_is_not(api: Api) -> None:
    with planned(api.injector, endless):
        async with invoked(api, request("first")) as (sid, tid, _events):
            refused = await api.http.post("/invoke", json=request("second", sid))
            assert assert_error(refused, 409, "turn_running")["turn_id"] == str(tid)
            await until(lambda: tid in api.injector.runs, "the run starts")
    steered = await api.http.post("/invoke", json=request("instead", sid, force=True))
    assert steered.headers["x-turn-id"] != str(tid)
    assert events_of(steered)[-1]["type"] == names.TURN_COMPLETED
    types = [event["type"] for event in await api.events(sid)]
    assert types[:4] == [
        names.TURN_STARTED,
        "message",
        names.SANDBOX_CREATING,
        names.TURN_CANCELLED,
    ]
    assert types[4:] == [event["type"] for event in events_of(steered)]
    idle = await api.http.post("/invoke", json=request("again", sid, force=True))
    assert events_of(idle)[-1]["type"] == names.TURN_COMPLETED


async def test_cancelling_streams_what_is_left_of_the_turn(api: Api) -> None:
    session = await api.new_session()
    turn, _ = await api.start_run(session.id, endless)
    answer = await api.http.post("/invoke", json=request(None, session.id))
    assert answer.headers["x-turn-id"] == str(turn.id)
    assert events_of(answer)[-1]["type"] == names.TURN_CANCELLED
    for force in (False, True):
        nothing = await api.http.post("/invoke", json=request(None, session.id, force=force))
        assert_error(nothing, 409, "no_turn_running")


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        ({}, 400, "invalid_input"),
        (request(""), 400, "invalid_input"),
        (request(5), 400, "invalid_input"),
        (request([{"type": "text", "text": 5}]), 400, "invalid_input"),
        (request("x", NOBODY), 404, "session_not_found"),
        (request(None, NOBODY), 404, "session_not_found"),
        (request("x", harness="emacs"), 400, "unknown_harness"),
        (request("x", colour="red"), 400, "invalid_input"),
        (request("x" * (MAX_PROMPT_CHARS + 1)), 413, "too_large"),
        ({"force": "perhaps"}, 400, "invalid_input"),
    ],
    ids=lambda value: str(value)[:40],
)
async def test_a_refused_invoke_leaves_nothing_behind(
    api: Api, body: dict[str, Any], status: int, code: str
) -> None:
    before = (await api.http.get("/sessions", params={"limit": 200})).json()
    assert_error(await api.http.post("/invoke", json=body), status, code)
    assert (await api.http.get("/sessions", params={"limit": 200})).json() == before
