"""One turn per session, whatever number of api processes there is: leases, epochs, takeover."""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import signal
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import httpx
import pytest
from uuid_utils.compat import uuid7

from api.db import leases, sessions, transcript
from api.db.leases import Holder
from api.db.pool import IDLE_SECONDS, Database, open_database
from api.grants import seize, take_over
from api.lines import Numbered
from api.pump import Limits
from api.record import Carried, record, record_accepted, record_end
from contracts.errors import DatabaseUnavailable, StaleEpoch
from contracts.events import Message, Receipt, TurnCompleted
from tests.integration.api.test_process import environment, started
from tests.integration.api.test_transcript import HOLDER, message, new_turn, stored
from tests.support import names
from tests.support.api import rows
from tests.support.api.database import NewDatabase
from tests.support.api.fault_injector import FaultInjector, FaultyRun, planned, short_run
from tests.support.api.serving import Api, make_settings, serve_api, served
from tests.support.services import SeaweedFS, free_port, until

SHORT_LEASE = Limits(2.0, 5.0, gap_tries=3, lease_seconds=0.6, reconcile_every=3600.0)
RECEIPT = Receipt(engine="weed", files=1, bytes=5, manifest_sha256="0" * 64, took=0.1)


def holder(seconds: float = 10.0) -> Holder:
    return Holder(uuid7(), timedelta(seconds=seconds))


async def session_of(database: Database, turn_id: UUID) -> UUID:
    async with database.connection() as conn:
        return await rows.find_session(conn, turn_id)


async def expire(database: Database, turn_id: UUID) -> None:
    async with database.connection() as conn:
        await rows.expire_lease(conn, turn_id)


async def test_every_write_with_a_stale_epoch_is_refused_and_stores_nothing(
    database: Database,
) -> None:
    old = await new_turn(database)
    await record(database, old, [message(1, "kept")])
    session_id = await session_of(database, old.turn_id)
    await expire(database, old.turn_id)
    taken = await take_over(database, session_id, old.turn_id, holder())
    assert taken is not None
    assert taken.lease_epoch == old.epoch + 1
    assert taken.epoch == old.epoch
    assert taken.last_source == 1
    writes = (
        record(database, old, [message(2)]),
        record(database, old, [Numbered(2, RECEIPT), Numbered(3, TurnCompleted())]),
        record_end(database, old, TurnCompleted()),
        record_accepted(database, old),
    )
    for write in writes:
        with pytest.raises(StaleEpoch):
            await write
    new = Carried(taken.id, taken.lease_epoch)
    async with database.connection() as conn:
        assert await rows.read_turn(conn, old.turn_id) == ("running", False, None, 1)
    assert [event.seq for event in await stored(database, new)] == [1]
    assert await record(database, new, [message(2), Numbered(3, TurnCompleted())])
    # the turn is over: whoever comes late is told so, and not that it is another's
    assert await record(database, old, [message(4)]) is True
    assert await record_accepted(database, old) is False
    assert [event.seq for event in await stored(database, new)] == [1, 2, 3]


async def test_a_write_that_waits_for_a_takeover_sees_its_epoch(database: Database) -> None:
    old = await new_turn(database)
    session_id = await session_of(database, old.turn_id)
    async with database.transaction() as conn:
        await rows.raise_epoch(conn, session_id)
        waiting = asyncio.create_task(record(database, old, [message(1)]))
        async with database.connection() as other:
            async with asyncio.timeout(10):
                while not await rows.count_waiting(other):
                    await asyncio.sleep(0.01)
    with pytest.raises(StaleEpoch):
        await waiting


async def test_a_lease_is_taken_when_it_is_free_and_by_one(database: Database) -> None:
    turn = await new_turn(database)
    session_id = await session_of(database, turn.turn_id)
    assert await take_over(database, session_id, turn.turn_id, holder()) is None
    await expire(database, turn.turn_id)
    tries = [take_over(database, session_id, turn.turn_id, holder()) for _ in range(6)]
    taken = [each for each in await asyncio.gather(*tries) if each is not None]
    assert [each.lease_epoch for each in taken] == [turn.epoch + 1]
    seized = await seize(database, session_id, turn.turn_id, holder())
    assert seized is not None
    assert seized.lease_epoch == turn.epoch + 2


async def test_a_lease_is_free_at_its_end_and_no_moment_before(database: Database) -> None:
    turn = await new_turn(database)
    session_id = await session_of(database, turn.turn_id)
    for left, is_free in ((timedelta(milliseconds=1), False), (timedelta(0), True)):
        async with database.transaction() as conn:  # in which the clock stands still
            await rows.end_lease_in(conn, turn.turn_id, left)
            found = await leases.free(conn, holder(), [])
            assert ((turn.turn_id, session_id) in found) is is_free
            assert await leases.is_free(conn, turn.turn_id) is is_free


async def test_a_heartbeat_keeps_what_is_carried_and_nothing_else(database: Database) -> None:
    mine, dropped, others = [await new_turn(database) for _ in range(3)]
    other = holder()
    async with database.connection() as conn:
        await leases.grant(conn, others.turn_id, other)
        await rows.expire_leases(conn)
        await rows.request_cancel(conn, mine.turn_id)
        held = await leases.extend(conn, HOLDER, [mine.turn_id, others.turn_id])
        assert [(each.turn_id, each.cancel_requested) for each in held] == [(mine.turn_id, True)]
        free = {turn for turn, _ in await leases.free(conn, HOLDER, [mine.turn_id])}
        assert free == {dropped.turn_id, others.turn_id}
        await leases.give_up(conn, HOLDER)
        free = {turn for turn, _ in await leases.free(conn, other, [others.turn_id])}
        assert free == {mine.turn_id, dropped.turn_id}


async def test_heartbeats_are_heap_only_updates(database: Database) -> None:
    turn = await new_turn(database)
    async with database.transaction() as conn:
        for _ in range(50):
            assert len(await leases.extend(conn, HOLDER, [turn.turn_id])) == 1
        assert await rows.count_lease_updates(conn) == (50, 50)


@asynccontextmanager
async def two_apis(
    new_database: NewDatabase, store: SeaweedFS, limits: Limits = SHORT_LEASE
) -> AsyncIterator[tuple[Api, Api, AsyncExitStack]]:
    """Two apis on one database and one sidecar; closing the stack ends the first one."""
    injector, url = FaultInjector(), await new_database()
    async with served(injector.app()) as sidecar_url:
        settings = make_settings(url, store, sidecar_url)
        async with AsyncExitStack() as first, serve_api(settings, injector, limits) as other:
            yield (
                await first.enter_async_context(serve_api(settings, injector, limits)),
                other,
                first,
            )


def talking(run: FaultyRun) -> None:
    run.journal.extend(short_run()[:3])


async def lease_epoch(api: Api, session_id: UUID) -> int:
    async with rows.connect(api.settings) as conn:
        return await rows.read_epoch(conn, session_id)


async def test_of_turns_at_once_through_two_apis_one_is_taken(
    new_database: NewDatabase, store_service: SeaweedFS
) -> None:
    async with two_apis(new_database, store_service) as (one, two, _):
        session = await one.new_session()
        with planned(one.injector, talking):
            posts = [
                api.http.post(f"/sessions/{session.id}/turns", json={"prompt": "x"})
                for api in (one, two) * 4
            ]
            answers = await asyncio.gather(*posts)
            await until(lambda: one.injector.runs, "the run starts")
        assert Counter(answer.status_code for answer in answers) == {202: 1, 409: 7}


async def test_a_cancel_works_through_any_api(
    new_database: NewDatabase, store_service: SeaweedFS
) -> None:
    slow = Limits(2.0, 5.0, lease_seconds=600.0, reconcile_every=3600.0)  # no heartbeat helps
    async with two_apis(new_database, store_service, slow) as (one, two, _):
        session = await one.new_session()
        turn, _ = await one.start_run(session.id, talking)
        answer = await two.http.post(f"/sessions/{session.id}/turns/{turn.id}/cancel")
        assert answer.status_code == 202
        assert (await two.ended(turn)).state == "cancelled"
        await one.start_run(session.id, talking)
        assert (await two.http.delete(f"/sessions/{session.id}")).status_code == 200


async def test_an_api_that_ends_gives_its_turns_to_another_at_once(
    new_database: NewDatabase, store_service: SeaweedFS
) -> None:
    patient = Limits(2.0, 5.0, lease_seconds=60.0, reconcile_every=3600.0)
    async with two_apis(new_database, store_service, patient) as (one, two, first):
        session = await one.new_session()
        turn, run = await one.start_run(session.id, talking)
        await until(lambda: run.connections == [0], "the first one follows")
        await first.aclose()
        await until(lambda: len(run.connections) == 2, "the second one follows", 30)
        run.journal.extend(short_run()[3:])
        assert (await two.ended(turn)).state == "completed"
        assert [event["seq"] for event in await two.events(session.id)] == list(range(1, 9))
        assert await lease_epoch(two, session.id) == 2


async def test_a_lease_that_is_kept_is_not_taken(
    new_database: NewDatabase, store_service: SeaweedFS
) -> None:
    async with two_apis(new_database, store_service) as (one, two, _):
        session = await one.new_session()
        turn, _ = await one.start_run(session.id, talking)
        async with rows.connect(one.settings) as conn:
            # four whole lives of the lease, by the database's clock
            end = await rows.read_lease_end(conn) + timedelta(seconds=2.4)
            async with asyncio.timeout(20):
                while not await rows.is_past(conn, end):
                    await asyncio.sleep(0.05)
        assert one.injector.runs[turn.id].connections == [0]
        assert await lease_epoch(two, session.id) == 1


async def wait_for_line(http: httpx.AsyncClient, sid: str, count: int) -> None:
    async with asyncio.timeout(30):
        while len((await http.get(f"/sessions/{sid}/events")).text.splitlines()) < count:
            await asyncio.sleep(0.05)


async def test_a_stopped_api_that_wakes_up_after_a_takeover_changes_nothing(
    new_database: NewDatabase, store_service: SeaweedFS, tmp_path: Path
) -> None:
    """Two processes; the first one is stopped in the middle of its stream and woken at the end."""
    injector = FaultInjector()
    injector.plan = talking
    async with served(injector.app()) as sidecar_url, AsyncExitStack() as stack:
        url = await new_database()
        logs = [tmp_path / "one", tmp_path / "two"]
        one, two = [
            await stack.enter_async_context(
                started(environment(url, store_service, sidecar_url, free_port()), log)
            )
            for log in logs
        ]
        sid = (await one.http.post("/sessions", json={})).json()["id"]
        answer = await one.http.post(f"/sessions/{sid}/turns", json={"prompt": "go"})
        turn = answer.json()["id"]
        await wait_for_line(two.http, sid, 5)
        os.kill(one.child.pid, signal.SIGSTOP)
        (run,) = injector.runs.values()
        # the stopped one gets this too, in its socket, and stores it when it wakes up, if it can
        for number in range(20):
            run.say("message", role="assistant", text=str(number))
        await wait_for_line(two.http, sid, 25)
        os.kill(one.child.pid, signal.SIGCONT)
        await until(lambda: "another process's by now" in logs[0].read_text(), "it stands back", 30)
        for kind, fields in _end():
            run.say(kind, **fields)
        async with asyncio.timeout(20):
            while (await one.http.get(f"/sessions/{sid}/turns/{turn}")).json()["state"] == (
                "running"
            ):
                await asyncio.sleep(0.05)
        events = [
            json.loads(line)
            for line in (await one.http.get(f"/sessions/{sid}/events")).text.splitlines()
        ]
    assert [event["seq"] for event in events] == list(range(1, len(events) + 1))
    texts = [event["text"] for event in events if event.get("role") == "assistant"]
    assert texts == ["done", *map(str, range(20))]
    assert [event["type"] for event in events[-3:]] == ["message", "receipt", names.TURN_COMPLETED]
    assert len(injector.runs) == 1
    assert "Traceback" not in logs[0].read_text()


def _end() -> list[tuple[str, dict[str, Any]]]:
    receipt = RECEIPT.model_dump(include={"engine", "files", "bytes", "manifest_sha256", "took"})
    return [("receipt", receipt), (names.TURN_COMPLETED, {})]


async def test_a_process_that_stops_inside_a_transaction_does_not_hold_a_session_for_ever(
    new_database: NewDatabase,
) -> None:
    assert inspect.signature(open_database).parameters["idle_seconds"].default == IDLE_SECONDS
    url = await new_database()
    async with (
        open_database(url, idle_seconds=0.2) as stopped,
        open_database(url) as other,
        asyncio.timeout(20),
    ):
        turn = await new_turn(other)
        session_id = await session_of(other, turn.turn_id)

        async def stop_inside() -> None:
            async with stopped.transaction() as held:
                assert await sessions.lock(held, session_id) is not None
                # waits for the row until the database hangs up on the one that does nothing
                async with other.transaction() as conn:
                    assert await sessions.lock(conn, session_id) is not None

        with pytest.raises(DatabaseUnavailable):
            await stop_inside()


async def test_the_check_of_the_epoch_costs_no_statement(database: Database) -> None:
    turn = await new_turn(database)
    seen: list[str] = []
    async with database.connection() as conn:
        # the first time, the driver has questions of its own about types
        for number in (1, 2):
            seen.clear()
            async with conn.transaction():
                with conn.query_logger(lambda query: seen.append(query.query)):
                    place = await transcript.lock(conn, turn.turn_id, turn.epoch)
                    assert place is not None
                    new = [transcript.prepare(Message(role="assistant", text="x"), number)]
                    await transcript.append(conn, turn.turn_id, place, new)
    assert len(seen) == 3, "lock, insert, advance"
