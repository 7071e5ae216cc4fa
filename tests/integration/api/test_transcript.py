"""The transcript: dense, never doubled, verbatim, and woken by NOTIFY."""

from __future__ import annotations

import asyncio
import json
from datetime import timedelta
from uuid import UUID

import asyncpg
import pytest
from uuid_utils.compat import uuid7

from api.db import leases, sessions, transcript, turns
from api.db.leases import Holder
from api.db.notify import Listener
from api.db.pool import UNAVAILABLE, Database
from api.lines import Numbered
from api.record import Carried, record, record_end
from contracts.events import Message, Raw, TurnCompleted, decode
from tests.support import names
from tests.support.api import rows
from tests.support.services import until

HOLDER = Holder(uuid7(), timedelta(seconds=10))


async def new_session(database: Database) -> UUID:
    session_id = uuid7()
    async with database.connection() as conn:
        new = sessions.NewSession(session_id, "", "claude", "local", None, None, "auto")
        await sessions.insert(conn, new)
    return session_id


async def new_turn(database: Database) -> Carried:
    """A session with a turn that runs and has no event yet."""
    turn_id, session_id = uuid7(), await new_session(database)
    async with database.transaction() as conn:
        how = ("go", "claude", "local", None, None)
        await turns.insert(conn, turns.NewTurn(turn_id, session_id, *how, "auto"), 1)
        await sessions.start_turn(conn, session_id, 1, "")
        await turns.start(conn, turn_id, 1, 1)
        await leases.grant(conn, turn_id, HOLDER)
    return Carried(turn_id, 1)


def message(n: int | None, text: str = "x") -> Numbered:
    return Numbered(n, Message(role="assistant", text=text))


async def stored(database: Database, carried: Carried) -> list[transcript.Stored]:
    async with database.connection() as conn:
        place = await transcript.lock(conn, carried.turn_id, carried.epoch)
        assert place is not None
        return await transcript.read(conn, place.session_id, 0)


async def test_seq_is_dense_under_eight_appenders(database: Database) -> None:
    carried = await new_turn(database)

    async def append(writer: int) -> None:
        for number in range(25):
            batch = [message(None, f"{writer}.{number}.{index}") for index in range(1 + number % 4)]
            await record(database, carried, batch)

    async with asyncio.TaskGroup() as group:
        for writer in range(8):
            group.create_task(append(writer))
    events = await stored(database, carried)
    expected = 8 * sum(1 + number % 4 for number in range(25))
    assert [event.seq for event in events] == list(range(1, expected + 1))
    texts = [json.loads(event.body)["text"] for event in events]
    assert len(set(texts)) == expected
    for writer in range(8):
        own = [text for text in texts if text.startswith(f"{writer}.")]
        assert own == sorted(own, key=lambda text: [int(part) for part in text.split(".")])


async def test_a_repeated_batch_is_stored_once(database: Database) -> None:
    carried = await new_turn(database)
    first = [message(n, str(n)) for n in (1, 2, 3)]
    async with asyncio.TaskGroup() as group:
        for _ in range(4):
            group.create_task(record(database, carried, first))
    await record(database, carried, [message(n, str(n)) for n in (2, 3, 4, 5)])
    events = await stored(database, carried)
    assert [json.loads(event.body)["text"] for event in events] == ["1", "2", "3", "4", "5"]
    assert [event.seq for event in events] == [1, 2, 3, 4, 5]


async def test_nothing_follows_the_end_of_a_turn(database: Database) -> None:
    carried = await new_turn(database)
    batch = [message(1), Numbered(2, TurnCompleted()), message(3)]
    assert await record(database, carried, batch) is True
    assert await record(database, carried, [message(4)]) is True
    await record_end(database, carried, TurnCompleted())
    assert [event.type for event in await stored(database, carried)] == [
        "message",
        names.TURN_COMPLETED,
    ]


async def test_a_failed_batch_takes_no_number(database: Database) -> None:
    carried = await new_turn(database)
    await record(database, carried, [message(1)])

    async def fail() -> None:
        async with database.transaction() as conn:
            place = await transcript.lock(conn, carried.turn_id, carried.epoch)
            assert place is not None
            new = [transcript.prepare(Message(role="assistant", text="lost"), 2)]
            await transcript.append(conn, carried.turn_id, place, new)
            raise RuntimeError("on purpose")

    with pytest.raises(RuntimeError, match="on purpose"):
        await fail()
    await record(database, carried, [message(2, "kept")])
    events = await stored(database, carried)
    assert [event.seq for event in events] == [1, 2]
    assert json.loads(events[1].body)["text"] == "kept"


@pytest.mark.parametrize(
    "text",
    [
        "nul \0 inside",
        "lone \ud800 surrogate",
        "a" * 5_000_000,
        "line\u2028\x0b\x85\r\n",
        "\x1b[31m",
    ],
    ids=["nul", "surrogate", "5MB", "breaks", "escape"],
)
async def test_any_text_is_stored_verbatim(database: Database, text: str) -> None:
    carried = await new_turn(database)
    await record(database, carried, [message(1, text)])
    (event,) = await stored(database, carried)
    read = decode(event.body)
    assert isinstance(read, Message)
    assert read.text == text
    assert (read.seq, read.turn_id) == (1, carried.turn_id)
    assert b"\n" not in event.body


async def test_what_nobody_knows_is_stored_as_it_came(database: Database) -> None:
    carried = await new_turn(database)
    data = {"deep": [{"k\ud800": None, "n": 10**40}], "empty": {}}
    await record(database, carried, [Numbered(1, Raw(source="new", data=data))])
    (event,) = await stored(database, carried)
    assert json.loads(event.body)["data"] == data


async def test_a_page_is_cut_by_bytes_and_never_empty(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transcript, "PAGE_BYTES", 10_000)
    carried = await new_turn(database)
    await record(database, carried, [message(n, "a" * 4_000) for n in range(1, 8)])
    await record(database, carried, [message(8, "b" * 50_000), message(9)])
    seen: list[int] = []
    sizes = []
    for _ in range(20):
        async with database.connection() as conn:
            place = await transcript.lock(conn, carried.turn_id, carried.epoch)
            assert place is not None
            page = await transcript.read(conn, place.session_id, seen[-1] if seen else 0)
        if not page:
            break
        seen += [event.seq for event in page]
        sizes.append(len(page))
    assert seen == list(range(1, 10))
    assert sizes == [3, 3, 2, 1]


async def test_a_commit_wakes_the_followers_of_its_session_only(database: Database) -> None:
    carried, other = await new_turn(database), await new_turn(database)
    async with database.connection() as conn:
        place, elsewhere = (
            await transcript.lock(conn, carried.turn_id, carried.epoch),
            await transcript.lock(conn, other.turn_id, other.epoch),
        )
    assert place is not None
    assert elsewhere is not None
    listener = Listener(database)
    async with listener.serve():
        with (
            listener.subscribe(place.session_id) as woken,
            listener.subscribe(elsewhere.session_id) as silent,
        ):
            await until(lambda: woken.is_set() and silent.is_set(), "the listener is connected")
            woken.clear()
            silent.clear()
            async with database.transaction() as conn:
                held = await transcript.lock(conn, carried.turn_id, carried.epoch)
                assert held is not None
                new = [transcript.prepare(Message(role="assistant", text="x"), 1)]
                await transcript.append(conn, carried.turn_id, held, new)
                # another session's wake-up proves that the listener heard up to here
                await record(database, other, [message(1)])
                await until(silent.is_set, "the other session is woken")
                assert not woken.is_set()
            await until(woken.is_set, "the commit wakes the follower")


async def test_a_lost_listening_connection_is_replaced(database: Database) -> None:
    carried = await new_turn(database)
    async with database.connection() as conn:
        place = await transcript.lock(conn, carried.turn_id, carried.epoch)
    assert place is not None
    listener = Listener(database)
    async with listener.serve():
        with listener.subscribe(place.session_id) as woken:
            await until(woken.is_set, "the listener is connected")
            woken.clear()
            async with database.connection() as conn:
                assert await rows.cut_listeners(conn) == 1
            await until(woken.is_set, "a new connection wakes everyone")
            woken.clear()
            await record(database, carried, [message(1)])
            await until(woken.is_set, "the new connection hears")


def test_every_class_of_errors_is_an_outage_or_known_to_be_a_bug() -> None:
    mapped = {True: set[str](), False: set[str]()}
    for cls in vars(asyncpg.exceptions).values():
        if isinstance(cls, type) and issubclass(cls, asyncpg.PostgresError) and cls.sqlstate:
            mapped[issubclass(cls, UNAVAILABLE)].add(cls.sqlstate[:2])
    assert " ".join(sorted(mapped[True])) == "08 25 28 3D 40 53 57 58"
    # what a wrong statement of ours raises must show as a bug, not as "try again"
    assert " ".join(sorted(mapped[False])) == (
        "03 09 0A 0B 0F 0L 0P 0Z 10 20 21 22 23 24 25 26 27 2B 2D 2F 34 38 39 3B 3F "
        "42 44 54 55 72 F0 HV P0 XX"
    )
