"""Turns over HTTP: start, end, cancel, and what is refused."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator

import httpx
import pytest
from uuid_utils.compat import uuid7

from contracts.bodies import MAX_PROMPT_CHARS, Turn, TurnPage
from contracts.events import dumps
from tests.support import names
from tests.support.api import rows
from tests.support.api.fault_injector import FaultyRun, numbered, planned
from tests.support.api.serving import Api, assert_error
from tests.support.services import Postgres, until


def endless(run: FaultyRun) -> None:
    """A run that goes on until it is cancelled."""
    run.say(names.SANDBOX_CREATING, provider="local")


async def sandbox_rows(api: Api, turn: Turn) -> list[tuple[str, str | None]]:
    async with rows.connect(api.settings) as conn:
        found = await rows.list_sandboxes(conn, turn.session_id)
    return [(state, provider_id) for state, provider_id, _ in found]


async def test_a_turn_runs_to_its_end_with_a_receipt(api: Api) -> None:
    session = await api.new_session(model="opus", reasoning="high")
    turn = await api.start(session.id, "write a file")
    assert (turn.state, turn.first_seq, turn.receipt) == ("running", 1, None)
    ended = await api.ended(turn)
    assert ended.state == "completed"
    assert ended.receipt is not None
    assert (ended.receipt.engine, ended.receipt.files) == ("weed", 1)
    assert ended.ended_at is not None
    events = await api.events(session.id)
    assert [event["type"] for event in events] == [
        names.TURN_STARTED,
        "message",
        names.SANDBOX_CREATING,
        names.SANDBOX_READY,
        "message",
        "usage",
        "receipt",
        names.TURN_COMPLETED,
    ]
    assert [event["seq"] for event in events] == list(range(1, 9))
    assert {event["turn_id"] for event in events} == {str(turn.id)}
    assert {event["session_id"] for event in events} == {str(session.id)}
    assert (events[1]["role"], events[1]["text"]) == ("user", "write a file")
    assert (ended.first_seq, ended.last_seq) == (1, 8)
    request = api.injector.runs[turn.id].request
    assert (request.epoch, request.prompt, request.model) == (1, "write a file", "opus")
    assert await sandbox_rows(api, turn) == [("live", "box-1")]
    now = (await api.http.get(f"/sessions/{session.id}")).json()
    assert (now["last_seq"], now["running_turn"]) == (8, None)
    assert now["updated_at"] > session.updated_at.isoformat()


async def test_the_next_turn_goes_on_where_the_last_ended(api: Api) -> None:
    session = await api.new_session()
    turns = []
    for number in range(3):
        turns.append(await api.start(session.id, f"turn {number}"))
        await api.ended(turns[-1])
    events = await api.events(session.id)
    assert [event["seq"] for event in events] == list(range(1, 25))
    assert [api.injector.runs[turn.id].request.epoch for turn in turns] == [1, 2, 3]
    assert await sandbox_rows(api, turns[0]) == [("live", "box-1")]
    first = await api.http.get(f"/sessions/{session.id}/turns", params={"limit": 2})
    page = TurnPage.model_validate_json(first.content)
    assert [turn.prompt for turn in page.turns] == ["turn 0", "turn 1"]
    rest = await api.http.get(
        f"/sessions/{session.id}/turns", params={"limit": 2, "cursor": page.next_cursor or ""}
    )
    page = TurnPage.model_validate_json(rest.content)
    assert [turn.prompt for turn in page.turns] == ["turn 2"]
    assert page.next_cursor is None


async def test_a_turn_may_choose_for_itself(api: Api) -> None:
    session = await api.new_session(model="opus", permissions="ask")
    turn = await api.start(session.id, harness="pi", permissions="auto")
    assert (turn.harness, turn.model, turn.permissions) == ("pi", None, "auto")
    await api.ended(turn)
    assert (await api.http.get(f"/sessions/{session.id}")).json()["harness"] == "claude"
    refused = await api.http.post(
        f"/sessions/{session.id}/turns", json={"prompt": "x", "harness": "pi"}
    )
    assert_error(refused, 400, "unsupported_choice")


async def test_of_turns_at_once_one_is_taken_and_nothing_is_left_of_the_others(api: Api) -> None:
    session = await api.new_session()
    with planned(api.injector, endless):
        async with asyncio.TaskGroup() as group:
            tasks = [
                group.create_task(
                    api.http.post(f"/sessions/{session.id}/turns", json={"prompt": f"p{number}"})
                )
                for number in range(8)
            ]
        answers = [task.result() for task in tasks]
        assert Counter(answer.status_code for answer in answers) == {202: 1, 409: 7}
        (taken,) = [
            Turn.model_validate_json(each.content) for each in answers if each.status_code == 202
        ]
        for answer in answers:
            if answer.status_code == 409:
                assert assert_error(answer, 409, "turn_running")["turn_id"] == str(taken.id)
        await until(lambda: taken.id in api.injector.runs, "the run starts")
        listed = (await api.http.get(f"/sessions/{session.id}/turns")).json()["turns"]
        assert [each["id"] for each in listed] == [str(taken.id)]
        assert (await api.http.get(f"/sessions/{session.id}")).json()["running_turn"] == str(
            taken.id
        )
        await api.http.post(f"/sessions/{session.id}/turns/{taken.id}/cancel")
        await api.ended(taken)
    types = [event["type"] for event in await api.events(session.id)]
    assert types == [names.TURN_STARTED, "message", names.SANDBOX_CREATING, names.TURN_CANCELLED]


async def test_a_cancel_may_be_repeated_until_the_turn_has_ended(api: Api) -> None:
    session = await api.new_session()
    turn, run = await api.start_run(session.id, lambda run: setattr(run, "deaf", True))
    path = f"/sessions/{session.id}/turns/{turn.id}/cancel"
    for _ in range(3):
        assert (await api.http.post(path)).status_code == 202
    await until(lambda: run.cancels > 0, "the cancel reaches the sidecar")
    assert (await api.turn(turn)).state == "running"
    run.say(names.TURN_CANCELLED, reason="at last")
    assert (await api.ended(turn)).state == "cancelled"
    assert run.cancels == 1
    assert_error(await api.http.post(path), 409, "no_turn_running")
    unknown = f"/sessions/{session.id}/turns/{uuid7()}"
    assert_error(await api.http.post(f"{unknown}/cancel"), 404, "turn_not_found")
    assert_error(await api.http.get(unknown), 404, "turn_not_found")


async def test_a_failed_turn_carries_the_error_of_its_last_event(api: Api) -> None:
    session = await api.new_session()
    error = {
        "code": "mount_failed",
        "message": "no \ud800 mount \0",
        "hint": "look",
        "retryable": True,
    }

    def fail(run: FaultyRun) -> None:
        run.journal.extend(numbered((names.TURN_FAILED, {"error": error})))

    with planned(api.injector, fail):
        turn = await api.ended(await api.start(session.id))
    assert turn.state == "failed"
    # in an answer the lone surrogate is replaced, in the transcript it is kept
    assert turn.error == {**error, "message": "no \ufffd mount \0"}
    assert (await api.events(session.id))[-1]["error"] == error
    assert turn.receipt is None
    assert await sandbox_rows(api, turn) == [("intent", None)]


async def test_boxes_that_come_and_go_are_noted(api: Api) -> None:
    session = await api.new_session()
    box = {"provider": "local", "sandbox_id": "first"}

    def plan(run: FaultyRun) -> None:
        run.journal.extend(
            numbered(
                (names.SANDBOX_ATTACHED, box),
                (names.SANDBOX_GONE, {**box, "reason": "killed \0"}),
                (names.SANDBOX_READY, {"provider": "local", "sandbox_id": "second", "took": 0.1}),
                (names.SANDBOX_DESTROYED, {**box, "sandbox_id": "second", "proof": "404"}),
                (names.TURN_COMPLETED, {}),
            )
        )

    with planned(api.injector, plan):
        turn = await api.ended(await api.start(session.id))
    assert await sandbox_rows(api, turn) == [("gone", "first"), ("destroyed", "second")]


@pytest.mark.parametrize(
    "prompt", ["\0 nul", "ü🙂" * 1000, "x" * MAX_PROMPT_CHARS], ids=["nul", "unicode", "longest"]
)
async def test_a_prompt_comes_back_as_it_was_sent(api: Api, prompt: str) -> None:
    session = await api.new_session()
    turn = await api.start(session.id, prompt)
    assert turn.prompt == prompt
    assert (await api.ended(turn)).prompt == prompt
    assert api.injector.runs[turn.id].request.prompt == prompt
    assert (await api.events(session.id))[1]["text"] == prompt


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        ({}, 400, "invalid_input"),
        ({"prompt": ""}, 400, "invalid_input"),
        ({"prompt": "\ud800"}, 400, "invalid_input"),
        ({"prompt": 5}, 400, "invalid_input"),
        ({"prompt": "x", "harness": "emacs"}, 400, "unknown_harness"),
        ({"prompt": "x", "provider": "moon"}, 400, "unknown_provider"),
        ({"prompt": "x", "model": "a\0"}, 400, "invalid_input"),
        ({"prompt": "x" * (MAX_PROMPT_CHARS + 1)}, 413, "too_large"),
        ({"prompt": "x" * 10_000_000}, 413, "too_large"),
    ],
    ids=str,
)
async def test_a_refused_turn_leaves_nothing_behind(
    api: Api, body: dict[str, object], status: int, code: str
) -> None:
    session = await api.new_session()
    starts = api.injector.starts
    answer = await api.http.post(
        f"/sessions/{session.id}/turns",
        content=dumps(body),
        headers={"Content-Type": "application/json"},
    )
    assert_error(answer, status, code)
    assert (await api.http.get(f"/sessions/{session.id}/turns")).json()["turns"] == []
    assert await api.events(session.id) == []
    assert (await api.http.get(f"/sessions/{session.id}")).json()["last_seq"] == 0
    assert api.injector.starts == starts


async def test_a_body_of_unknown_length_is_counted(api: Api) -> None:
    session = await api.new_session()
    sent = 0

    async def chunks() -> AsyncIterator[bytes]:
        nonlocal sent
        yield b'{"prompt": "'
        for _ in range(160):
            sent += 1
            yield b"x" * 65536
        yield b'"}'

    answer = await api.http.post(
        f"/sessions/{session.id}/turns",
        content=chunks(),
        headers={"Content-Type": "application/json"},
    )
    assert_error(answer, 413, "too_large")
    assert sent == 160, "the client was cut off while it was sending"


async def test_deleting_a_session_ends_its_turn_and_takes_its_rows(api: Api) -> None:
    session = await api.new_session()
    await api.ended(await api.start(session.id))
    api.injector.boxes[session.id] = "box-1"
    turn, run = await api.start_run(session.id, endless)
    answer = await api.http.delete(f"/sessions/{session.id}")
    assert answer.status_code == 200, answer.text
    deleted = answer.json()
    assert (deleted["sandboxes"], deleted["turns"]) == (1, 2)
    assert deleted["events"] >= 8 + 3
    assert run.cancels == 1
    assert await sandbox_rows(api, turn) == []
    assert_error(await api.http.get(f"/sessions/{session.id}"), 404, "session_not_found")


async def test_a_database_that_is_away_is_503(api: Api, postgres_server: Postgres) -> None:
    session = await api.new_session()
    name = api.settings.database_url.get_secret_value().partition("?")[0].rpartition("/")[2]
    async with rows.database_away(postgres_server.url(), name):
        answer: httpx.Response = await api.http.get(f"/sessions/{session.id}")
        ready = await api.http.get("/readyz")
    assert assert_error(answer, 503, "database_unavailable")["retryable"] is True
    assert (ready.status_code, ready.json()["parts"]["store"]) == (503, "ok")
    assert (await api.http.get(f"/sessions/{session.id}")).status_code == 200


async def test_a_turn_waits_for_a_database_that_comes_back(
    api: Api, postgres_server: Postgres
) -> None:
    session = await api.new_session()
    name = api.settings.database_url.get_secret_value().partition("?")[0].rpartition("/")[2]
    turn, run = await api.start_run(session.id, endless)
    await until(lambda: run.connections, "the stream is followed")
    async with rows.database_away(postgres_server.url(), name):
        for number in range(20):
            run.say("message", role="assistant", text=str(number))
        assert (await api.http.get(f"/sessions/{session.id}")).status_code == 503
    run.say(names.TURN_COMPLETED)
    assert (await api.ended(turn)).state == "completed"
    texts = [each["text"] for each in (await api.events(session.id))[3:-1]]
    assert texts == [str(number) for number in range(20)]
