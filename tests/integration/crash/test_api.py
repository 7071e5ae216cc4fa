"""An api may die at every call to PostgreSQL, the store and the sidecar: another one goes on."""

from __future__ import annotations

import asyncio
import contextlib
import io
import itertools
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any
from unittest import mock
from uuid import UUID

import pytest

from api.app import open_services
from api.backup.create import create
from api.backup.errors import BadBackup, DatabaseInUse, NotEmpty
from api.backup.restore import UNFINISHED, restore
from api.backup.restore import check as check_backup
from api.carrier import Carrier
from api.db import dump, notify, transcript
from api.db.notify import Listener
from api.db.pool import open_database
from api.edits import Edits
from api.metrics import Metrics
from api.pump import Limits
from api.quota import Quotas
from api.services import Services
from api.sessions import Sessions
from api.settings import Settings
from api.sidecar import Sidecar, open_sidecar
from api.store import Stores, open_stores
from api.turns import Turns
from contracts.bodies import Choices, Session, SessionCreate, Turn
from contracts.errors import Conflict, SessionNotFound, WorkspaceBusy
from contracts.redaction import Redactor
from tests.support.api import rows
from tests.support.api.backing import Stack, backed_up, silent, turn_with_files
from tests.support.api.database import NewDatabase
from tests.support.api.fault_injector import FaultInjector, FaultyRun, short_run
from tests.support.api.serving import Api, make_settings, served
from tests.support.crash.killing import Cutting, Killing, counted
from tests.support.crash.table import Row, Table
from tests.support.services import SeaweedFS

LIMITS = Limits(reconcile_every=3600.0)
# More than any of the tests has.
MOST_POINTS = 300
END_SECONDS = 60.0

Record = Callable[[str, Any], None]
Life = Callable[[Session], Awaitable[None]]


@dataclass
class World:
    """What is around an api, and another api, which goes on."""

    settings: Settings
    injector: FaultInjector
    stores: Stores
    sidecar: Sidecar
    other: Services

    async def die_everywhere(
        self, prepare: Callable[[], Awaitable[Session]], life: Life, recover: Life
    ) -> None:
        """Let a process live until it dies at its first point; then another one in another session
        until the second; and so on, until one comes to its end."""
        for at in itertools.count(1):
            assert at < MOST_POINTS
            session = await prepare()
            died = await Killing(at).run(life, session)
            await recover(session)
            if not died:
                return

    @contextlib.asynccontextmanager
    async def open_api(self) -> AsyncIterator[Services]:
        """An api, without its HTTP. The clients of the store and of the sidecar know nothing, and
        take long to make: they are shared."""
        with (
            mock.patch("api.app.open_stores", return_value=contextlib.nullcontext(self.stores)),
            mock.patch("api.app.open_sidecar", return_value=contextlib.nullcontext(self.sidecar)),
        ):
            async with open_services(self.settings, LIMITS, Metrics(), Redactor()) as services:
                yield services

    async def delete(self, session_id: UUID) -> None:
        """By an api that does nothing else."""
        settings = self.settings
        async with open_database(settings.database_url.get_secret_value()) as database:
            listener = Listener(database)
            carrier = Carrier(database, self.sidecar, listener, LIMITS)
            turns = Turns(
                database, self.sidecar, listener, carrier, Quotas(self.stores, 0, 0), 0, 0
            )
            sessions = Sessions(database, self.stores, self.sidecar, turns, carrier, settings)
            with counted():
                await sessions.delete(session_id)

    async def new_session(self, files: dict[str, bytes] | None = None) -> Session:
        session = await self.other.sessions.create(SessionCreate(), "tests")
        for path, data in (files or {}).items():
            await self.stores.sessions.put(f"{session.id}/{path}", data)
        return session

    async def expire(self) -> None:
        """The leases and the holds of the dead run out now."""
        async with self.other.database.transaction() as conn:
            await rows.expire_leases(conn)
            await rows.expire_holds(conn)
            await notify.notify(conn, notify.WORK)

    async def turns(self, session_id: UUID) -> list[Turn]:
        return (await self.other.turns.page(session_id, limit=10, cursor=None)).turns

    async def check_turn(self, turn: Turn) -> None:
        """It comes to its end: once, with one receipt and all that was said, and by one run."""
        turns = self.other.turns
        assert await turns.wait_for_end(turn.session_id, turn.id, END_SECONDS)
        now = await turns.get(turn.session_id, turn.id)
        assert now.state == "completed"
        assert now.receipt is not None
        async with self.other.database.connection() as conn:
            stored = await transcript.read(conn, turn.session_id, 0)
        assert [each.seq for each in stored] == list(range(1, len(stored) + 1))
        run = self.injector.runs[turn.id]
        said = [json.loads(line)["event"]["type"] for line in run.journal]
        own = [each.type for each in stored if each.turn_id == turn.id]
        assert own == ["turn.started", "message", *said]
        assert run.cancels == 0

    async def files(self, session_id: UUID) -> dict[str, bytes]:
        prefix, found = f"{session_id}/", {}
        async for key in self.stores.sessions.keys(prefix):
            path = key.removeprefix(prefix)
            if not path.endswith("/"):
                async with self.stores.sessions.open(session_id, path) as file:
                    found[path] = b"".join([chunk async for chunk in file.chunks])
        return found


@pytest.fixture(scope="module")
async def world(new_database: NewDatabase, store_service: SeaweedFS) -> AsyncIterator[World]:
    async with open_world(await new_database(), store_service) as opened:
        yield opened


@contextlib.asynccontextmanager
async def open_world(database_url: str, store_service: SeaweedFS) -> AsyncIterator[World]:
    injector = FaultInjector()
    injector.plan = cut_once
    async with served(injector.app()) as sidecar_url:
        settings = make_settings(database_url, store_service, sidecar_url)
        async with (
            open_stores(settings) as stores,
            open_sidecar(settings) as sidecar,
            open_services(settings, LIMITS, Metrics(), Redactor()) as other,
        ):
            yield World(settings, injector, stores, sidecar, other)


def cut_once(run: FaultyRun) -> None:
    """The first connection brings three lines and breaks, the others bring the rest."""
    run.journal.extend(short_run())
    run.faults.append(lambda lines: [b"".join(lines[:3]), None])
    run.faults += [lambda lines: [b"".join(lines)]] * 3


NOTHING = Row("api, in a turn", "before it is committed", "nothing happened; the client is told")
COMMITTED = Row("api, in a turn", "committed, run not started", "taken over, the run is started")
STARTED = Row("api, in a turn", "run started, not noted", "taken over, started again: one run")
FOLLOWED = Row("api, in a turn", "in the stream", "taken over, followed from the last line")
ENDED = Row("api, in a turn", "end stored", "nothing is left to do")


async def row_of_turn(world: World, turn: Turn) -> Row:
    async with world.other.database.connection() as conn:
        state, accepted, _, _ = await rows.read_turn(conn, turn.id)
    if state != "running":
        return ENDED
    if accepted:
        return FOLLOWED
    return STARTED if turn.id in world.injector.runs else COMMITTED


async def test_an_api_dies_at_every_call_of_a_turn(world: World, record_property: Record) -> None:
    table = Table()

    async def life(session: Session) -> None:
        async with world.open_api() as services:
            with counted():
                turn = await services.turns.start(session.id, "go", Choices())
            await services.turns.wait_for_end(session.id, turn.id, END_SECONDS)

    async def recover(session: Session) -> None:
        found = await world.turns(session.id)
        row = await row_of_turn(world, found[0]) if found else NOTHING
        with table.died(row, 1):
            await world.expire()
            if not found:
                found = [await world.other.turns.start(session.id, "go", Choices())]
            (turn,) = found
            await world.check_turn(turn)

    await world.die_everywhere(world.new_session, life, recover)
    table.hand_over(record_property, {NOTHING, COMMITTED, STARTED, FOLLOWED, ENDED})


UNMARKED = Row("api, in a delete", "before it is marked", "nothing happened; the client is told")
MARKED = Row("api, in a delete", "marked, rows there", "no turn starts; asked again, it finishes")
DELETED = Row("api, in a delete", "rows gone", "nothing is left to do")


async def test_an_api_dies_at_every_call_of_a_delete(world: World, record_property: Record) -> None:
    table = Table()
    files = {"a": b"1", "dir/b": b"2"}

    async def prepare() -> Session:
        session = await world.new_session(files)
        await world.stores.state.put(f"{session.id}/manifests/latest.json", b"{}")
        world.injector.boxes[session.id] = f"box-{session.id}"
        return session

    async def recover(session: Session) -> None:
        row = await row_of_delete(world, session)
        with table.died(row, 1):
            if row is UNMARKED:
                assert await world.files(session.id) == files
                assert session.id in world.injector.boxes
            if row is not DELETED:
                await world.other.sessions.delete(session.id)
            with pytest.raises(SessionNotFound):
                await world.other.sessions.get(session.id)
            assert (await world.stores.sessions.measure(str(session.id))).objects == 0
            assert (await world.stores.state.measure(str(session.id))).objects == 0
            assert session.id not in world.injector.boxes

    await world.die_everywhere(prepare, lambda session: world.delete(session.id), recover)
    table.hand_over(record_property, {UNMARKED, MARKED, DELETED})


async def row_of_delete(world: World, session: Session) -> Row:
    """By whether a turn can start: in a session that is being deleted none can."""
    try:
        turn = await world.other.turns.start(session.id, "go", Choices())
    except SessionNotFound:
        return DELETED
    except Conflict:
        return MARKED
    await world.check_turn(turn)
    return UNMARKED


UNCHANGED = Row("api, in an edit", "before the store is changed", "nothing happened")
HALFWAY = Row("api, in an edit", "in the middle", "in both places at worst; the user removes one")
CHANGED = Row("api, in an edit", "the store is changed", "it holds, told or not")
FOLDER = {"old/a": b"1", "old/b/c": b"2", "other": b"3"}
MOVED = {"new/a": b"1", "new/b/c": b"2", "other": b"3"}
UPLOADED = {**FOLDER, "up": b"4"}
LARGE = b"x" * (5 << 20)


async def put_small(edits: Edits, session: Session) -> None:
    await edits.put(session, "up", chunks_of(b"4"), replace=True)


async def put_large(edits: Edits, session: Session) -> None:
    await edits.put(session, "up", chunks_of(LARGE), replace=True)


async def move(edits: Edits, session: Session) -> None:
    await edits.move(session.id, "old", "new")


async def delete(edits: Edits, session: Session) -> None:
    await edits.delete(session.id, "old")


async def chunks_of(data: bytes) -> AsyncIterator[bytes]:
    for begin in range(0, len(data), 1 << 20):
        yield data[begin : begin + (1 << 20)]


EDITS = {
    "a small upload": (put_small, UPLOADED, {UNCHANGED, CHANGED}),
    "a large upload": (put_large, {**FOLDER, "up": LARGE}, {UNCHANGED, CHANGED}),
    "a move of a folder": (move, MOVED, {UNCHANGED, HALFWAY, CHANGED}),
    "a delete of a folder": (delete, {"other": b"3"}, {UNCHANGED, CHANGED}),
}


@pytest.mark.parametrize("name", EDITS)
async def test_an_api_dies_at_every_call_of_an_edit(
    world: World, name: str, record_property: Record
) -> None:
    edit, wanted, expected = EDITS[name]
    table, edits = Table(), world.other.edits

    async def life(session: Session) -> None:
        with counted():
            await edit(edits, session)

    async def recover(session: Session) -> None:
        row = await row_of_edit(world, session, wanted)
        with table.died(row, 1):
            await check_edit(world, session, name, row)

    await world.die_everywhere(lambda: world.new_session(FOLDER), life, recover)
    table.hand_over(record_property, expected)


async def row_of_edit(world: World, session: Session, wanted: dict[str, bytes]) -> Row:
    found = await world.files(session.id)
    begun = await world.stores.sessions.has_directory(f"{session.id}/new")
    return CHANGED if found == wanted else HALFWAY if begun or found != FOLDER else UNCHANGED


async def check_edit(world: World, session: Session, name: str, row: Row) -> None:
    """Each file is where it was or where it goes to; and the user can have the rest done."""
    edit, wanted, _ = EDITS[name]
    edits, found = world.other.edits, await world.files(session.id)
    assert set(found.values()) >= set(FOLDER.values()) & set(wanted.values())
    assert found.items() <= {**FOLDER, **wanted}.items()
    if row is HALFWAY:
        await edits.delete(session.id, "new")
    if row is not CHANGED:
        await edit(edits, session)
    assert await world.files(session.id) == wanted


HELD = "sidecar, in an edit"
TELL = "the user is told that some may be done, and tries again"
LET_GO = {
    UNCHANGED: Row(HELD, "before the store is changed", TELL),
    HALFWAY: Row(HELD, "in the middle", TELL),
    CHANGED: Row(HELD, "the store is changed, not acknowledged", TELL),
}


@pytest.mark.parametrize("name", EDITS)
async def test_the_sidecar_dies_at_every_change_of_the_store_in_an_edit(
    world: World, name: str, record_property: Record
) -> None:
    """It held the workspace: a change without that is not acknowledged."""
    edit, wanted, expected = EDITS[name]
    table, bucket = Table(), world.settings.s3_bucket
    for at in itertools.count(1):
        assert at < MOST_POINTS
        session = await world.new_session(FOLDER)
        cutting, acknowledged = Cutting(bucket, at, world.injector.cut_holds), False
        with cutting.intercepting(), contextlib.suppress(WorkspaceBusy):
            await edit(world.other.edits, session)
            acknowledged = True
        if not cutting.happened:
            break
        row = await row_of_edit(world, session, wanted)
        with table.died(LET_GO[row], 1):
            assert not acknowledged
            await check_edit(world, session, name, row)
    table.hand_over(record_property, {LET_GO[row] for row in expected})


COPYING = Row(
    "backup", "before it is whole", "the archive is refused; turns wait until the hold ends"
)
WHOLE = Row("backup", "whole", "nothing is left to do")


async def test_a_backup_dies_at_every_call(
    new_database: NewDatabase, store_service: SeaweedFS, record_property: Record
) -> None:
    table = Table()
    async with open_world(await new_database(), store_service) as world:
        await kill_backups(world, table)
    table.hand_over(record_property, {COPYING, WHOLE})


async def kill_backups(world: World, table: Table) -> None:
    """In a database that has one session at a time: a backup is of all there are."""
    file = io.BytesIO()

    async def prepare() -> Session:
        file.seek(0)
        file.truncate()
        return await world.new_session({"a": b"1"})

    async def life(_: Session) -> None:
        with counted():
            await create(world.settings, file, wait=0.0, say=silent)

    async def recover(session: Session) -> None:
        file.seek(0)
        try:
            await check_backup(file, say=silent)
            row = WHOLE
        except BadBackup:
            row = COPYING
        with table.died(row, 1):
            turn = await world.other.turns.start(session.id, "go", Choices(), queue=True)
            await world.expire()
            await world.check_turn(turn)
        await world.other.sessions.delete(session.id)

    await world.die_everywhere(prepare, life, recover)


BEFORE_ROWS = Row("restore", "before the rows are committed", "repeated: it clears what is left")
WITH_ROWS = Row("restore", "rows committed", "the stack is whole; another restore is refused")
# Rows are of one transaction: until its end, whatever is said to PostgreSQL changes nothing.
RESTORE_CHANGES = ("COMMIT", "Put", "Delete")


async def test_a_restore_dies_at_every_change(
    busy: tuple[Api, Stack], empty: Stack, record_property: Record
) -> None:
    table, (api, stack) = Table(), busy
    await turn_with_files(api, stack, (await api.new_session()).id, {"a": b"1", "b/c": b"2"})
    _, file = await backed_up(stack)
    wanted = await stack.objects()

    async def life(target: Stack) -> None:
        with counted():
            await restore(target.settings, io.BytesIO(file.getvalue()), say=silent)

    for at in itertools.count(1):
        assert at < MOST_POINTS
        died = await Killing(at, RESTORE_CHANGES).run(life, empty)
        row = WITH_ROWS if (await empty.rows()).get("sessions") else BEFORE_ROWS
        with table.died(row, 1):
            if row is BEFORE_ROWS:
                await restore_alone(empty, file.getvalue())
            else:
                with pytest.raises(NotEmpty, match="rows in"):
                    await restore_alone(empty, file.getvalue())
            found = await empty.objects()
            found.pop(("s3_state_bucket", UNFINISHED), None)
            assert found == wanted
            assert len((await empty.rows())["sessions"]) == 1
        if not died:
            break
        await make_empty(empty)
    table.hand_over(record_property, {BEFORE_ROWS, WITH_ROWS})


async def restore_alone(target: Stack, data: bytes) -> None:
    """When PostgreSQL has noticed that the one before is dead."""
    async with asyncio.timeout(END_SECONDS):
        while True:
            try:
                await restore(target.settings, io.BytesIO(data), say=silent)
            except DatabaseInUse:
                await asyncio.sleep(0.01)
            else:
                return


async def make_empty(target: Stack) -> None:
    async with rows.connect(target.settings) as conn:
        await dump.clear(conn)
    for bucket, key in await target.objects():
        await target.s3.delete_object(Bucket=getattr(target.settings, bucket), Key=key)
