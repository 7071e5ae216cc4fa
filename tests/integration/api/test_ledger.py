"""The ledger of sandboxes: entries are closed with proof, and what nobody knows is a leak."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from uuid_utils.compat import uuid7

from api.db.pool import Database, open_database
from api.ledger import LOCK, Ledger
from api.sidecar import open_sidecar
from contracts.bodies import Leak, LeakList, SandboxBody, Session, Turn
from contracts.errors import SandboxError, TurnRunning
from tests.support import names
from tests.support.api import rows
from tests.support.api.fault_injector import FaultyRun, numbered, planned, short_run
from tests.support.api.serving import Api, assert_error
from tests.support.services import until


@pytest.fixture(autouse=True)
def clean(api: Api) -> None:
    api.injector.boxes.clear()
    api.injector.strays.clear()
    api.injector.destroyed.clear()
    api.injector.destroy_errors.clear()
    api.injector.asked = ["local"]
    api.injector.after_listing = lambda: None


@asynccontextmanager
async def ledger_of(api: Api) -> AsyncIterator[tuple[Ledger, Database]]:
    url = api.settings.database_url.get_secret_value()
    async with open_database(url) as database, open_sidecar(api.settings) as sidecar:
        yield Ledger(database, sidecar, 3600.0), database


async def reconcile(api: Api) -> None:
    async with ledger_of(api) as (ledger, _):
        await ledger.reconcile()


async def entries(api: Api, session_id: UUID) -> list[tuple[str, str | None, str | None]]:
    async with ledger_of(api) as (_, database), database.connection() as conn:
        return await rows.list_sandboxes(conn, session_id)


async def list_leaks(api: Api) -> list[Leak]:
    answer = await api.http.get("/leaks")
    assert answer.status_code == 200, answer.text
    return LeakList.model_validate_json(answer.content).leaks


async def leaks(api: Api) -> list[tuple[str | None, UUID | None, str]]:
    return [(leak.sandbox_id, leak.session_id, leak.code) for leak in await list_leaks(api)]


async def read_reasons(api: Api) -> set[str]:
    """In words, each once."""
    return {leak.reason for leak in await list_leaks(api)}


async def with_box(api: Api, name: str) -> tuple[Session, Turn]:
    """A session that has had a turn, and whose box is warm."""
    session = await api.new_session()
    ready = (names.SANDBOX_READY, {"provider": "local", "sandbox_id": name, "took": 0.1})

    def plan(run: FaultyRun) -> None:
        api.injector.boxes[session.id] = name
        run.journal.extend(numbered(ready, (names.TURN_COMPLETED, {})))

    with planned(api.injector, plan):
        turn = await api.ended(await api.start(session.id))
    return session, turn


def stray(session_id: UUID, name: str, provider: str = "local") -> SandboxBody:
    return SandboxBody(session_id=session_id, sandbox_id=name, provider=provider, state="running")


async def test_a_warm_box_is_no_leak_and_stays(api: Api) -> None:
    session, _ = await with_box(api, "warm")
    assert await leaks(api) == []
    await reconcile(api)
    assert await entries(api, session.id) == [("live", "warm", None)]
    assert api.injector.destroyed == []


async def test_a_box_that_is_not_listed_any_more_is_gone_with_proof(api: Api) -> None:
    session, _ = await with_box(api, "short-lived")
    api.injector.boxes.clear()
    await reconcile(api)
    ((state, box, proof),) = await entries(api, session.id)
    assert (state, box) == ("gone", "short-lived")
    assert proof is not None
    assert proof.startswith("not listed by local at 20")
    assert await leaks(api) == []


async def test_a_provider_that_was_not_asked_proves_nothing(api: Api) -> None:
    """It is well when its capabilities are asked for, and in trouble when its boxes are."""
    session, _ = await with_box(api, "warm")
    boxes = dict(api.injector.boxes)
    capable = await api.http.get("/capabilities")
    assert capable.json()["providers"][0]["available"]
    api.injector.boxes.clear()
    api.injector.asked = []
    await reconcile(api)
    assert await entries(api, session.id) == [("live", "warm", None)]
    api.injector.boxes.update(boxes)
    api.injector.asked = ["local"]
    await reconcile(api)
    assert await entries(api, session.id) == [("live", "warm", None)]
    assert api.injector.destroyed == []


@pytest.mark.parametrize("state", ["live", "intent"])
async def test_a_box_that_one_listing_leaves_out_is_not_gone(api: Api, state: str) -> None:
    if state == "live":
        session, _ = await with_box(api, "warm")
    else:
        session = await api.new_session()
        with planned(api.injector, lambda run: run.say(names.TURN_CANCELLED)):
            await api.ended(await api.start(session.id))
    api.injector.boxes.clear()
    api.injector.after_listing = lambda: api.injector.boxes.update({session.id: "warm"})
    listings = api.injector.listings
    await reconcile(api)
    assert api.injector.listings == listings + 2
    assert await entries(api, session.id) == [("live", "warm", None)]
    assert api.injector.destroyed == []


async def test_a_provider_that_is_asked_only_once_proves_nothing(api: Api) -> None:
    session, _ = await with_box(api, "warm")
    api.injector.boxes.clear()
    api.injector.after_listing = api.injector.asked.clear
    await reconcile(api)
    assert await entries(api, session.id) == [("live", "warm", None)]
    assert api.injector.destroyed == []


async def test_an_intent_that_led_to_nothing_is_closed_with_proof(api: Api) -> None:
    session = await api.new_session()
    with planned(api.injector, lambda run: run.say(names.TURN_CANCELLED)):
        await api.ended(await api.start(session.id))
    assert await entries(api, session.id) == [("intent", None, None)]
    assert await leaks(api) == []
    ((state, box, proof),) = await entries(api, session.id)
    assert (state, box) == ("gone", None)
    assert "not listed by local" in str(proof)
    again = await api.ended(await api.start(session.id))
    assert again.state == "completed"
    assert [row[0] for row in await entries(api, session.id)] == ["gone", "live"]


async def test_an_intent_whose_box_was_not_told_gets_it(api: Api) -> None:
    session = await api.new_session()
    with planned(api.injector, lambda run: run.say(names.TURN_CANCELLED)):
        await api.ended(await api.start(session.id))
    api.injector.boxes[session.id] = "untold"
    await reconcile(api)
    assert await entries(api, session.id) == [("live", "untold", None)]
    assert api.injector.destroyed == []


async def test_what_a_running_turn_does_is_left_alone(api: Api) -> None:
    session, _ = await with_box(api, "before")
    api.injector.boxes.clear()

    def plan(run: FaultyRun) -> None:
        run.say(names.SANDBOX_CREATING, provider="local")

    turn, _ = await api.start_run(session.id, plan)
    api.injector.boxes[session.id] = "not yet told"
    await reconcile(api)
    assert await leaks(api) == []
    assert await entries(api, session.id) == [("live", "before", None)]
    assert api.injector.destroyed == []
    await api.http.post(f"/sessions/{session.id}/turns/{turn.id}/cancel")
    await api.ended(turn)


async def test_a_box_of_a_deleted_session_is_a_leak_and_is_ended(api: Api) -> None:
    session, _ = await with_box(api, "left")
    assert (await api.http.delete(f"/sessions/{session.id}")).status_code == 200
    api.injector.boxes[session.id] = "left"
    assert await leaks(api) == [("left", session.id, "unknown")]
    await reconcile(api)
    assert api.injector.destroyed == ["left"]
    assert await leaks(api) == []


async def test_a_box_whose_entry_is_closed_is_a_leak_and_is_ended(api: Api) -> None:
    session, _ = await with_box(api, "undead")
    await api.http.post(f"/sessions/{session.id}/kill")
    assert [row[0] for row in await entries(api, session.id)] == ["gone"]
    api.injector.boxes[session.id] = "undead"
    assert [leak[0] for leak in await leaks(api)] == ["undead"]
    api.injector.destroy_errors = [TurnRunning("in use")]
    await reconcile(api)
    assert [leak[0] for leak in await leaks(api)] == ["undead"]
    await reconcile(api)
    assert api.injector.destroyed == ["undead", "undead"]
    assert await entries(api, session.id) == [("destroyed", "undead", "status is gone")]
    assert await leaks(api) == []


async def test_two_living_boxes_of_a_session_are_told_and_the_unknown_one_is_ended(
    api: Api,
) -> None:
    session, _ = await with_box(api, "right")
    api.injector.strays = [stray(session.id, "rival")]
    found = await leaks(api)
    assert {(box, why) for box, _, why in found} == {
        ("right", "rival"),
        ("rival", "rival"),
        ("rival", "unknown"),
    }
    assert await read_reasons(api) == {
        "its session has 2 living sandboxes",
        "no entry of the ledger knows it",
    }
    await reconcile(api)
    assert api.injector.destroyed == ["rival"]
    assert await leaks(api) == []


async def test_a_box_that_is_on_its_way_out_is_no_leak(api: Api) -> None:
    api.injector.strays = [stray(uuid7(), "going")]
    api.injector.after_listing = api.injector.strays.clear
    assert await leaks(api) == []
    assert api.injector.destroyed == []


async def test_an_entry_whose_provider_cannot_be_asked_is_told_after_a_while(api: Api) -> None:
    session, _ = await with_box(api, "far")
    api.injector.boxes.clear()
    async with ledger_of(api) as (ledger, database):
        async with database.connection() as conn:
            await rows.move_sandboxes(conn, session.id, "e2b")
        await ledger.reconcile()
        assert await entries(api, session.id) == [("live", "far", None)]
        assert await leaks(api) == []
        async with database.connection() as conn:
            await rows.age_sandboxes(conn, session.id, timedelta(minutes=2))
    assert await leaks(api) == [("far", session.id, "unproven")]
    assert await read_reasons(api) == {"its death is not proven: e2b cannot be asked"}
    await reconcile(api)
    assert [row[0] for row in await entries(api, session.id)] == ["live"]
    await api.http.delete(f"/sessions/{session.id}")


async def test_one_process_reconciles_at_a_time(api: Api) -> None:
    async with ledger_of(api) as (ledger, database):
        async with database.alone(LOCK) as alone:
            assert alone
            listings = api.injector.listings
            await reconcile(api)
            assert api.injector.listings == listings
        await ledger.reconcile()
        assert api.injector.listings > listings
        # released also when the pass fails
        api.injector.after_listing = fail
        answer = await api.http.get("/leaks")
        assert_error(answer, 502, "sandbox_error")
        with pytest.raises(SandboxError):
            await ledger.reconcile()
        async with database.alone(LOCK) as alone:
            assert alone


def fail() -> Any:
    raise SandboxError("the provider is down", op="list")


async def test_a_pass_while_a_turn_comes_and_goes_closes_nothing_of_it(api: Api) -> None:
    """The entry is read, then a whole turn makes a box, then the old listing is looked at."""
    session = await api.new_session()
    with planned(api.injector, lambda run: run.say(names.TURN_CANCELLED)):
        await api.ended(await api.start(session.id))
    assert await entries(api, session.id) == [("intent", None, None)]
    listed, ran = threading.Event(), threading.Event()

    async def wait_for_turn() -> None:
        """In the injector's thread, with a listing that is not answered yet."""
        api.injector.after_listing = lambda: None
        listed.set()
        async with asyncio.timeout(60):
            while not ran.is_set():
                await asyncio.sleep(0.01)

    api.injector.after_listing = wait_for_turn
    async with asyncio.TaskGroup() as group:
        passing = group.create_task(reconcile(api))
        await until(listed.is_set, "the boxes are listed")
        api.injector.boxes[session.id] = "box-1"
        with planned(api.injector, lambda run: run.journal.extend(short_run())):
            await api.ended(await api.start(session.id))
        ran.set()
        await passing
    assert await entries(api, session.id) == [("live", "box-1", None)]
