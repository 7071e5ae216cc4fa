"""Sessions that start no turn while a backup copies them."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest
from uuid_utils.compat import uuid7

from api.backup import holder as holder_module
from api.backup.errors import BackupRunning
from api.backup.holder import Holder
from api.db import holds
from api.db.leases import Holder as LeaseHolder
from api.db.pool import open_database
from api.grants import begin_next
from tests.support import names
from tests.support.api import rows
from tests.support.api.backing import Stack
from tests.support.api.serving import Api, assert_error


async def test_a_turn_waits_while_its_session_is_held(busy: tuple[Api, Stack]) -> None:
    api, stack = busy
    sid = (await api.new_session()).id
    async with Holder.open(stack.settings.database_url.get_secret_value()) as holder:
        assert await holder.hold(sid) is not None
        turn = await api.start(sid)
        assert turn.state == "queued"
        assert_error(await api.http.delete(f"/sessions/{sid}"), 409, "conflict")
        # long enough for the api to have looked for turns that can start
        looks = await asyncio.wait_for(_looks(api), 20)
        assert looks
        assert (await api.turn(turn)).state == "queued"
        await holder.release(sid)
        assert (await api.ended(turn)).state == "completed"


async def _looks(api: Api) -> bool:
    """Another session's queued turn was started meanwhile: the sweep came by."""
    other = (await api.new_session()).id
    first, _ = await api.start_run(
        other, lambda run: run.say(names.SANDBOX_CREATING, provider="local")
    )
    second = await api.start(other, queue=True)
    api.injector.runs[first.id].say(names.TURN_COMPLETED, stop_reason="end_turn")
    return (await api.ended(second)).state == "completed"


async def test_a_hold_of_a_dead_backup_ends_by_itself(busy: tuple[Api, Stack]) -> None:
    api, stack = busy
    sid = (await api.new_session()).id
    async with rows.connect(stack.settings) as conn:
        await rows.hold_session(conn, sid, timedelta(seconds=1))
    turn = await api.start(sid)
    assert (await api.ended(turn)).state == "completed"


async def test_two_backups_do_not_hold_the_same_session(busy: tuple[Api, Stack]) -> None:
    api, stack = busy
    sid = (await api.new_session()).id
    url = stack.settings.database_url.get_secret_value()
    async with Holder.open(url) as one, Holder.open(url) as other:
        await one.hold(sid)
        with pytest.raises(BackupRunning, match="Another backup copies"):
            await other.hold(sid)
        await one.release(sid)
        assert await other.hold(sid) is not None


async def test_no_process_starts_a_turn_that_waits_in_a_held_session(
    busy: tuple[Api, Stack],
) -> None:
    api, stack = busy
    sid = (await api.new_session()).id
    url = stack.settings.database_url.get_secret_value()
    async with Holder.open(url) as holder, open_database(url) as database:
        await holder.hold(sid)
        turn = await api.start(sid)
        other = LeaseHolder(uuid7(), timedelta(seconds=10))
        assert await begin_next(database, sid, other) is None
        await holder.release(sid)
        assert (await api.ended(turn)).state == "completed"


async def test_a_hold_is_renewed_for_as_long_as_a_copy_takes(
    busy: tuple[Api, Stack], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(holds, "LASTS", timedelta(seconds=1))
    monkeypatch.setattr(holder_module, "RENEW_EVERY", 0.1)
    api, stack = busy
    sid = (await api.new_session()).id
    async with Holder.open(stack.settings.database_url.get_secret_value()) as holder:
        assert await holder.hold(sid) is not None
        turn = await api.start(sid)
        assert turn.state == "queued"
        async with rows.connect(stack.settings) as conn:
            first = await rows.read_hold(conn, sid)
            async with asyncio.timeout(30):
                while await rows.read_hold(conn, sid) <= first + timedelta(seconds=2):
                    await asyncio.sleep(0.05)
        assert await asyncio.wait_for(_looks(api), 20)
        assert (await api.turn(turn)).state == "queued"
    assert (await api.ended(turn)).state == "completed"
