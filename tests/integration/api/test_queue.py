"""Turns that wait for the running one: in order, whoever starts them, until they are cancelled."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from uuid_utils.compat import uuid7

from api.db.sessions import Locked
from api.turns import check_place
from contracts.bodies import Session, Turn, TurnPage
from contracts.errors import Conflict, SidecarUnavailable, TurnRunning
from tests.integration.api.test_leases import two_apis
from tests.support import names
from tests.support.api.database import NewDatabase
from tests.support.api.fault_injector import FaultInjector, FaultyRun
from tests.support.api.serving import QUICK, Api, assert_error, make_settings, serve_api, served
from tests.support.services import SeaweedFS


def endless(run: FaultyRun) -> None:
    run.say(names.SANDBOX_CREATING, provider="local")


async def fill(api: Api, count: int) -> tuple[Session, list[Turn]]:
    """A session whose first turn runs until it is cancelled, and `count` that wait."""
    session = await api.new_session()
    first, _ = await api.start_run(session.id, endless, "first")
    turns = [first]
    turns += [await api.start(session.id, f"queued {n}", queue=True) for n in range(count)]
    return session, turns


async def cancel(api: Api, turn: Turn) -> Any:
    return await api.http.post(f"/sessions/{turn.session_id}/turns/{turn.id}/cancel")


async def show(api: Api, session: Session) -> Session:
    return Session.model_validate_json((await api.http.get(f"/sessions/{session.id}")).content)


async def test_queued_turns_run_in_their_order_when_the_one_before_ends(api: Api) -> None:
    session, turns = await fill(api, 3)
    assert [turn.state for turn in turns] == ["running", *["queued"] * 3]
    now = await show(api, session)
    assert (now.queued, now.running_turn) == (3, turns[0].id)
    listed = (await api.http.get(f"/sessions/{session.id}/turns")).json()["turns"]
    assert [each["id"] for each in listed] == [str(turn.id) for turn in turns]
    assert all(turn.id not in api.injector.runs for turn in turns[1:])
    assert (await cancel(api, turns[0])).status_code == 202
    ended = [await api.ended(turn) for turn in turns]
    assert [turn.state for turn in ended] == ["cancelled", *["completed"] * 3]
    # each has a range of the transcript of its own, behind the one before
    for before, after in pairwise(ended):
        assert after.first_seq == before.last_seq + 1
    epochs = [api.injector.runs[turn.id].request.epoch for turn in turns]
    assert epochs == sorted(epochs)
    assert (await show(api, session)).queued == 0
    events = await api.events(session.id)
    assert [event["seq"] for event in events] == list(range(1, len(events) + 1))


async def test_pages_of_turns_go_on_into_the_queue(api: Api) -> None:
    session, turns = await fill(api, 4)
    seen: list[str] = []
    cursor: dict[str, str] = {}
    for _ in range(10):
        answer = await api.http.get(f"/sessions/{session.id}/turns", params={"limit": 2, **cursor})
        page = TurnPage.model_validate_json(answer.content)
        seen += [turn.prompt for turn in page.turns]
        if page.next_cursor is None:
            break
        cursor = {"cursor": page.next_cursor}
    assert seen == ["first", *(f"queued {n}" for n in range(4))]
    await api.http.delete(f"/sessions/{session.id}")
    assert turns[0].id in api.injector.runs


async def test_without_queue_a_second_turn_is_refused_also_behind_a_queue(api: Api) -> None:
    session, turns = await fill(api, 1)
    refused = await api.http.post(f"/sessions/{session.id}/turns", json={"prompt": "x"})
    error = assert_error(refused, 409, "turn_running")
    assert error["turn_id"] == str(turns[0].id)
    assert "queue" in error["hint"]
    await cancel(api, turns[0])
    assert (await api.ended(turns[1])).state == "completed"


async def test_with_queue_the_first_turn_of_all_starts_at_once(api: Api) -> None:
    session = await api.new_session()
    turn = await api.start(session.id, queue=True)
    assert turn.state == "running"
    assert (await api.ended(turn)).state == "completed"


async def test_a_queued_turn_that_is_cancelled_never_runs(api: Api) -> None:
    session, turns = await fill(api, 2)
    answer = await cancel(api, turns[1])
    assert (answer.status_code, answer.json()["state"]) == (202, "cancelled")
    assert_error(await cancel(api, turns[1]), 409, "no_turn_running")
    assert (await show(api, session)).queued == 1
    await cancel(api, turns[0])
    assert (await api.ended(turns[2])).state == "completed"
    assert turns[1].id not in api.injector.runs
    never = await api.turn(turns[1])
    assert (never.state, never.receipt) == ("cancelled", None)
    assert never.last_seq < never.first_seq
    assert str(turns[1].id) not in {event["turn_id"] for event in await api.events(session.id)}
    listed = (await api.http.get(f"/sessions/{session.id}/turns")).json()["turns"]
    assert [each["id"] for each in listed] == [str(turns[0].id), str(turns[2].id)]


async def test_the_next_one_starts_also_when_the_one_before_fails(api: Api) -> None:
    session = await api.new_session()
    api.injector.start_errors = [Conflict("no", hint="no")]
    first = await api.start(session.id, "fails")
    second = await api.start(session.id, "runs", queue=True)
    assert (await api.ended(first)).state == "failed"
    assert (await api.ended(second)).state == "completed"


async def test_deleting_a_session_drops_its_queue(api: Api) -> None:
    session, turns = await fill(api, 2)
    starts = api.injector.starts
    assert (await api.http.delete(f"/sessions/{session.id}")).status_code == 200
    assert api.injector.starts == starts
    assert all(turn.id not in api.injector.runs for turn in turns[1:])


async def test_a_delete_that_fails_half_way_has_dropped_the_queue(api: Api) -> None:
    session, turns = await fill(api, 1)
    api.injector.release_errors = [SidecarUnavailable("away")]
    failed = await api.http.delete(f"/sessions/{session.id}")
    assert_error(failed, 503, "sidecar_unavailable")
    assert (await api.turn(turns[1])).state == "cancelled"
    assert (await api.http.delete(f"/sessions/{session.id}")).status_code == 200


def test_nobody_overtakes_a_turn_that_waits_to_be_started() -> None:
    waiting = uuid7()
    locked = Locked(1, 8, deleting=False, running_turn=None, next_queued=waiting)
    assert check_place(locked, queue=True) is True
    with pytest.raises(TurnRunning) as refused:
        check_place(locked, queue=False)
    assert refused.value.details["turn_id"] == str(waiting)


async def test_a_full_queue_is_refused(api: Api) -> None:
    session, _turns = await fill(api, QUICK.max_queued)
    body = {"prompt": "x", "queue": True}
    answer = await api.http.post(f"/sessions/{session.id}/turns", json=body)
    assert_error(answer, 409, "conflict")
    await api.http.delete(f"/sessions/{session.id}")


async def test_a_queue_outlives_the_api_that_took_it(
    new_database: NewDatabase, store_service: SeaweedFS
) -> None:
    injector, url = FaultInjector(), await new_database()
    async with served(injector.app()) as sidecar_url:
        settings = make_settings(url, store_service, sidecar_url)
        async with serve_api(settings, injector) as api:
            _session, turns = await fill(api, 2)
        # the running one ends while no api is there
        injector.runs[turns[0].id].say(names.TURN_COMPLETED)
        async with serve_api(settings, injector) as api:
            states = [(await api.ended(turn)).state for turn in turns]
    assert states == ["completed"] * 3


async def test_two_apis_start_each_queued_turn_once(
    new_database: NewDatabase, store_service: SeaweedFS
) -> None:
    async with two_apis(new_database, store_service) as (one, two, _):
        session = await one.new_session()
        first, _ = await one.start_run(session.id, endless)
        queued = [await api.start(session.id, queue=True) for api in (one, two) * 5]
        await cancel(two, first)
        ended = [await one.ended(turn) for turn in queued]
        events = await two.events(session.id)
    assert {turn.state for turn in ended} == {"completed"}
    assert one.injector.starts == 11
    assert [turn.first_seq for turn in ended] == sorted(turn.first_seq for turn in ended)
    assert [event["seq"] for event in events] == list(range(1, len(events) + 1))
    assert sum(event["type"] == names.TURN_COMPLETED for event in events) == 10
