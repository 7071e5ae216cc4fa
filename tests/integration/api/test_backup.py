"""Backups: what is in them, and sessions that move while they are copied."""

from __future__ import annotations

import asyncio
import os
from typing import Any
from uuid import UUID

from api.backup.restore import check, restore
from api.db import dump
from tests.support import names
from tests.support.api import rows
from tests.support.api.backing import (
    OF_THE_STACK,
    Stack,
    backed_up,
    endless,
    silent,
    turn_with_files,
)
from tests.support.api.fault_injector import FaultInjector
from tests.support.api.serving import Api, serve_api, served


async def test_a_backup_comes_back_row_for_row_and_byte_for_byte(
    busy: tuple[Api, Stack], empty: Stack
) -> None:
    api, stack = busy
    big = os.urandom(17 << 20)
    names = ("a.txt", "dir/ünï codé 'x' % $ é.txt", "d" * 120 + "/" + "e" * 120, "new\nline", "0")
    for number in range(3):
        sid = (await api.new_session(title=f"\\.\t{number}")).id
        await turn_with_files(api, stack, sid, {name: name.encode() for name in names})
        await turn_with_files(api, stack, sid, {"big": big[number:], "nothing": b""})
        await stack.put(f"{sid}/state/pi/x.tar.gz", b"state", state=True)
        await stack.put(f"{sid}/with", b"1", Metadata={"mode": "33261"})
    await api.new_session(title="without a turn")
    report, file = await backed_up(stack)
    assert (report.sessions, report.receipts, report.whole) == (4, 6, True)
    assert report.restless == {}
    assert (await check(file, say=silent)).sessions == 4
    file.seek(0)
    content = await restore(empty.settings, file, say=silent)
    assert content.files == report.files == 3 * (len(names) + 3)
    before, after = await stack.rows(), await empty.rows()
    assert before["events"]
    assert {name: rows for name, rows in after.items() if name not in OF_THE_STACK} == {
        name: rows for name, rows in before.items() if name not in OF_THE_STACK
    }
    assert len(after["sandboxes"]) == len(before["sandboxes"]) == 3
    assert await empty.objects() == await stack.objects()


async def test_every_table_is_of_sessions_or_of_none(database: Any) -> None:
    async with database.connection() as conn:
        found = {table.name: table for table in await dump.tables(conn)}
        names = set(await rows.list_tables(conn))
    assert found.keys() == names - {"migrations", "holds"}
    for table in found.values():
        assert table.of_session or table.of_none, f"no row of {table.name} would be carried"
    owned = {name for name, table in found.items() if table.of_session}
    assert owned >= {"sessions", "turns", "events", "sandboxes", "leases", "permissions"}


async def test_a_running_turn_is_waited_for_and_the_next_one_waits_for_the_backup(
    busy: tuple[Api, Stack], empty: Stack
) -> None:
    api, stack = busy
    sid = (await api.new_session()).id
    running, _ = await api.start_run(sid, endless)
    async with asyncio.TaskGroup() as group:
        making = group.create_task(backed_up(stack))
        async with asyncio.timeout(20):
            while not (await stack.rows())["holds"]:
                await asyncio.sleep(0.02)
        queued = await api.start(sid, queue=True)
        api.injector.runs[running.id].say(names.TURN_COMPLETED, stop_reason="end_turn")
        report, file = await making
    assert report.whole
    assert (await api.ended(queued)).state == "completed"
    await restore(empty.settings, file, say=silent)
    states = {row.split(",")[0].strip("("): row for row in (await empty.rows())["turns"]}
    assert "completed" in states[str(running.id)]
    assert "queued" in states.get(str(queued.id), "queued")


async def test_a_turn_that_does_not_end_is_named_and_is_interrupted_where_it_comes_back(
    busy: tuple[Api, Stack], empty: Stack
) -> None:
    api, stack = busy
    sid = (await api.new_session()).id
    running, _ = await api.start_run(sid, endless)
    async with asyncio.timeout(20):
        while len(await api.events(sid)) < 3:
            await asyncio.sleep(0.02)
    report, file = await backed_up(stack, wait=0.0)
    assert report.mid_turn == [str(sid)]
    assert not report.whole
    await restore(empty.settings, file, say=silent)
    injector = FaultInjector()
    async with served(injector.app()) as sidecar_url:
        settings = empty.settings.model_copy(update={"sidecar_url": sidecar_url})
        async with serve_api(settings, injector) as restored:
            assert (await restored.ended(running)).state == "interrupted"


async def test_a_turn_that_ran_although_it_was_held_makes_the_session_be_copied_anew(
    busy: tuple[Api, Stack], empty: Stack
) -> None:
    api, stack = busy
    sid = (await api.new_session()).id
    await turn_with_files(api, stack, sid, {"a": b"before"})
    ran: list[UUID] = []

    async def run_turn(_: str) -> None:
        if not ran:
            ran.append(sid)
            async with rows.connect(stack.settings) as conn:
                await rows.expire_holds(conn)
            await turn_with_files(api, stack, sid, {"a": b"after!"})

    report, file = await backed_up(stack, on_object=run_turn)
    assert ran
    assert (report.receipts, report.changed) == (2, {})
    await restore(empty.settings, file, say=silent)
    assert await empty.objects() == await stack.objects()
    assert (await empty.rows())["turns"] == (await stack.rows())["turns"]


async def test_what_a_user_changes_while_it_is_copied_is_copied_again_or_left_out(
    busy: tuple[Api, Stack], empty: Stack
) -> None:
    api, stack = busy
    sid = (await api.new_session()).id
    await turn_with_files(api, stack, sid, {"a": b"1", "b": b"2", "c": b"3"})
    done: list[str] = []

    async def change_files(key: str) -> None:
        if key.endswith("/a") and not done:
            done.append(key)
            await stack.put(f"{sid}/a", b"changed")
            await stack.put(f"{sid}/d", b"new")
            await stack.s3.delete_object(Bucket=stack.settings.s3_bucket, Key=f"{sid}/b")
            await stack.s3.delete_object(Bucket=stack.settings.s3_bucket, Key=f"{sid}/c")

    report, file = await backed_up(stack, on_object=change_files)
    assert report.changed == {str(sid): ["a", "b", "c"]}
    assert report.whole
    await restore(empty.settings, file, say=silent)
    assert await empty.objects() == await stack.objects()


async def test_a_manifest_that_its_receipt_does_not_know_is_named(busy: tuple[Api, Stack]) -> None:
    api, stack = busy
    sid = (await api.new_session()).id
    turn = await turn_with_files(api, stack, sid, {"a": b"1"})
    await stack.put(f"{sid}/manifests/{turn}.json", b"{}", state=True)
    report, _ = await backed_up(stack)
    assert report.damaged == {str(sid): [str(turn)]}
    assert not report.whole
