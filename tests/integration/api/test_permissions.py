"""What a harness asks: kept with its event, answered once, delivered whatever happens between."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from contracts.bodies import Permission, PermissionList, Session, Turn
from contracts.errors import NotAskedYet
from tests.support import names
from tests.support.api.database import NewDatabase
from tests.support.api.fault_injector import FaultInjector, FaultyRun
from tests.support.api.serving import TOKEN, Api, assert_error, make_settings, serve_api, served
from tests.support.services import SeaweedFS, until

OPTIONS = [
    {"option_id": "yes", "name": "Allow", "kind": "allow_once"},
    {"option_id": "always", "name": "Always", "kind": "allow_always"},
    {"option_id": "no", "name": "Reject", "kind": "reject_once"},
]
ASKED = {
    "tool_call_id": "call-1",
    "title": "Write a.txt",
    "kind": "edit",
    "input": {"path": "a.txt"},
    "options": OPTIONS,
}


class Asking:
    """A session whose turn runs, and the run behind it."""

    def __init__(self, api: Api, session: Session, turn: Turn) -> None:
        self.api, self.session, self.turn = api, session, turn
        self.path = f"/sessions/{session.id}/permissions"

    @property
    def run(self) -> FaultyRun:
        return self.api.injector.runs[self.turn.id]

    async def ask(self, permission_id: str = "p-1", **changes: Any) -> Permission:
        self.run.say(names.PERMISSION_ASKED, permission_id=permission_id, **{**ASKED, **changes})
        async with asyncio.timeout(10):
            while True:
                found = [p for p in await self.list() if p.permission_id == permission_id]
                if found:
                    return found[0]
                await asyncio.sleep(0.01)

    async def list(self, **params: Any) -> list[Permission]:
        answer = await self.api.http.get(self.path, params=params)
        assert answer.status_code == 200, answer.text
        return PermissionList.model_validate_json(answer.content).permissions

    async def answer(self, permission_id: str, option: str, **more: Any) -> httpx.Response:
        path = f"{self.path}/{permission_id}"
        return await self.api.http.post(path, json={"option_id": option}, **more)

    async def delivered(self) -> None:
        await until(lambda: self.run.answers, "the answer is delivered")

    async def state(self) -> str:
        answer = await self.api.http.get(f"/sessions/{self.session.id}")
        return Session.model_validate_json(answer.content).state

    async def end(self) -> None:
        self.run.say(names.TURN_COMPLETED)
        await self.api.ended(self.turn)


async def asking(api: Api, **choices: Any) -> Asking:
    api.injector.plan = lambda run: None
    session = await api.new_session(**choices)
    turn = await api.start(session.id, **choices)
    await until(lambda: turn.id in api.injector.runs, "the run is taken")
    return Asking(api, session, turn)


async def test_what_is_asked_is_a_row_with_all_that_the_event_says(api: Api) -> None:
    turn = await asking(api, permissions="ask")
    asked = await turn.ask()
    assert asked.state == "pending"
    assert (asked.title, asked.kind, asked.input) == ("Write a.txt", "edit", {"path": "a.txt"})
    assert [option.model_dump() for option in asked.options] == OPTIONS
    assert asked.expires_at is not None
    [event] = [e for e in await api.events(turn.session.id) if e["type"] == names.PERMISSION_ASKED]
    assert event["seq"] == asked.seq
    assert await turn.state() == "waiting"
    waiting = await api.http.get("/sessions", params={"state": "waiting"})
    assert [each["id"] for each in waiting.json()["sessions"]] == [str(turn.session.id)]
    await turn.end()


async def test_an_answer_is_accepted_once_and_tells_who_was_first(api: Api) -> None:
    turn = await asking(api, permissions="ask")
    await turn.ask()
    async with asyncio.TaskGroup() as group:
        tries = [group.create_task(turn.answer("p-1", option)) for option in ("yes", "no") * 5]
    answers = [task.result() for task in tries]
    [accepted] = [answer for answer in answers if answer.status_code == 200]
    chosen = accepted.json()["option_id"]
    for answer in answers:
        if answer is not accepted:
            error = assert_error(answer, 409, "already_answered")
            assert (error["answered_by"], error["option_id"]) == ("token", chosen)
    await turn.delivered()
    assert [(pid, a.option_id, a.by) for pid, a in turn.run.answers] == [("p-1", chosen, "token")]
    await turn.end()
    [event] = [
        e for e in await api.events(turn.session.id) if e["type"] == names.PERMISSION_ANSWERED
    ]
    assert (event["option_id"], event["by"]) == (chosen, "token")


async def test_who_answers_is_recorded(api: Api) -> None:
    turn = await asking(api, permissions="ask")
    for number, (name, by) in enumerate(
        [("cli", "cli"), ("auto", "token"), ("Odd Name", "token")], start=1
    ):
        await turn.ask(f"p-{number}")
        answer = await turn.answer(f"p-{number}", "yes", headers={"X-Holdfast-Client": name})
        assert answer.json()["answered_by"] == by
    async with httpx.AsyncClient(base_url=api.url, trust_env=False) as browser:
        await browser.get("/", params={"token": TOKEN}, follow_redirects=False)
        await turn.ask("p-9")
        answer = await browser.post(
            f"{turn.path}/p-9", json={"option_id": "no"}, headers={"Origin": api.url}
        )
    assert answer.json()["answered_by"] == "page"
    await turn.end()


async def test_an_option_that_is_not_offered_answers_nothing(api: Api) -> None:
    turn = await asking(api, permissions="ask")
    await turn.ask()
    assert_error(await turn.answer("p-1", "maybe"), 400, "invalid_input")
    assert_error(await turn.answer("p-2", "yes"), 404, "permission_not_found")
    assert_error(await turn.answer("%00", "yes"), 400, "invalid_input")
    assert [each.state for each in await turn.list(pending=True)] == ["pending"]
    assert turn.run.answers == []
    await turn.end()


async def test_what_nobody_answered_is_closed_with_the_turn(api: Api) -> None:
    turn = await asking(api, permissions="ask")
    await turn.ask()
    await turn.end()
    assert await turn.state() == "not_durable"
    [closed] = await turn.list()
    assert (closed.state, closed.expires_at) == ("closed", None)
    error = assert_error(await turn.answer("p-1", "yes"), 409, "already_answered")
    assert error["answered_by"] == "turn"


async def test_an_answer_is_delivered_again_until_the_harness_takes_it(api: Api) -> None:
    turn = await asking(api, permissions="ask")
    turn.run.answer_errors += [NotAskedYet("adopting"), NotAskedYet("adopting")]
    await turn.ask()
    assert (await turn.answer("p-1", "yes")).status_code == 200
    await turn.delivered()
    assert turn.run.answer_errors == []
    await turn.end()


async def test_auto_is_on_record_and_never_a_wait(api: Api) -> None:
    turn = await asking(api, permissions="auto")
    await turn.ask()
    assert await turn.state() == "running"
    turn.run.say(names.PERMISSION_ANSWERED, permission_id="p-1", option_id="yes", by="auto")
    async with asyncio.timeout(10):
        while (await turn.list())[0].state != "answered":
            await asyncio.sleep(0.01)
    [answered] = await turn.list()
    assert (answered.answered_by, answered.option_id) == ("auto", "yes")
    await turn.end()


async def test_what_the_run_says_wins_over_an_answer_that_came_too_late(api: Api) -> None:
    turn = await asking(api, permissions="ask")
    turn.run.answer_errors += [NotAskedYet("away")] * 1000
    await turn.ask()
    assert (await turn.answer("p-1", "yes")).status_code == 200
    turn.run.say(names.PERMISSION_ANSWERED, permission_id="p-1", by="cancel")
    turn.run.say(names.TURN_CANCELLED)
    await api.ended(turn.turn)
    [told] = await turn.list()
    assert (told.state, told.answered_by, told.option_id) == ("answered", "cancel", None)


async def test_a_session_with_permissions_can_be_deleted(api: Api) -> None:
    turn = await asking(api, permissions="ask")
    await turn.ask()
    await turn.end()
    assert (await api.http.delete(f"/sessions/{turn.session.id}")).status_code == 200
    assert_error(await api.http.get(turn.path), 404, "session_not_found")


async def test_ask_with_a_harness_that_cannot_is_refused_before_anything_is_made(api: Api) -> None:
    session = await api.new_session(harness="pi")
    answer = await api.http.post(
        f"/sessions/{session.id}/turns", json={"prompt": "go", "permissions": "ask"}
    )
    error = assert_error(answer, 400, "unsupported_choice")
    assert "pi cannot ask" in error["message"]
    assert await api.events(session.id) == []


@pytest.fixture
async def injector() -> AsyncIterator[tuple[FaultInjector, str]]:
    faulty = FaultInjector()
    async with served(faulty.app()) as url:
        yield faulty, url


async def test_an_answer_given_while_the_api_that_carries_the_turn_is_away_is_delivered(
    new_database: NewDatabase, store_service: SeaweedFS, injector: tuple[FaultInjector, str]
) -> None:
    settings = make_settings(await new_database(), store_service, injector[1])
    async with serve_api(settings, injector[0]) as first:
        turn = await asking(first, permissions="ask")
        turn.run.answer_errors += [NotAskedYet("the sidecar is away")] * 1000
        await turn.ask()
        assert (await turn.answer("p-1", "always")).status_code == 200
    turn.run.answer_errors.clear()
    assert turn.run.answers == []
    async with serve_api(settings, injector[0]) as second:
        turn.api = second
        await turn.delivered()
        assert turn.run.answers[0][1].option_id == "always"
        assert_error(await turn.answer("p-1", "no"), 409, "already_answered")
        await turn.end()


async def test_what_nobody_answers_in_time_is_rejected_and_says_so(
    new_database: NewDatabase, store_service: SeaweedFS, injector: tuple[FaultInjector, str]
) -> None:
    settings = make_settings(
        await new_database(), store_service, injector[1], permission_seconds=0.3
    )
    async with serve_api(settings, injector[0]) as api:
        turn = await asking(api, permissions="ask")
        await turn.ask("p-1")
        await turn.ask("p-2", options=OPTIONS[:1])
        await until(lambda: len(turn.run.answers) == 2, "both are rejected")
        told = {pid: (a.option_id, a.by) for pid, a in turn.run.answers}
        # where there is no way to say no, the request is withdrawn
        assert told == {"p-1": ("no", "timeout"), "p-2": (None, "timeout")}
        error = assert_error(await turn.answer("p-1", "yes"), 409, "already_answered")
        assert error["answered_by"] == "timeout"
        await turn.end()
        events = await api.events(turn.session.id)
        reasons = [e["reason"] for e in events if e["type"] == names.PERMISSION_ANSWERED]
        assert reasons == ["nobody answered within 0.3 s"] * 2


async def test_an_answer_that_the_run_has_confirmed_is_not_delivered_by_the_next_api(
    new_database: NewDatabase, store_service: SeaweedFS
) -> None:
    injector, url = FaultInjector(), await new_database()
    async with served(injector.app()) as sidecar_url:
        settings = make_settings(url, store_service, sidecar_url)
        async with serve_api(settings, injector) as api:
            turn = await asking(api, permissions="ask")
            await turn.ask("p-1")
            assert (await turn.answer("p-1", "yes")).status_code == 200
            await turn.delivered()
            async with asyncio.timeout(10):
                while names.PERMISSION_ANSWERED not in {
                    each["type"] for each in await api.events(turn.session.id)
                }:
                    await asyncio.sleep(0.01)
        async with serve_api(settings, injector) as api:
            turn.api = api
            # what is asked and answered now is delivered after whatever was left over
            await turn.ask("p-2")
            assert (await turn.answer("p-2", "no")).status_code == 200
            await until(lambda: "p-2" in {pid for pid, _ in turn.run.answers}, "it is delivered")
            await turn.end()
    assert [(pid, answer.option_id) for pid, answer in turn.run.answers] == [
        ("p-1", "yes"),
        ("p-2", "no"),
    ]
