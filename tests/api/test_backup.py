"""Backups: what is in them, what is refused, and sessions that move while they are copied."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import hashlib
import io
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID

import asyncpg
import pytest
from uuid_utils.compat import uuid7

from api.backup import reading, session
from api.backup import restore as restoring
from api.backup.create import Report, create
from api.backup.errors import BackupError, BadBackup, NotEmpty, WrongSchema
from api.backup.holder import Holder
from api.backup.restore import check, restore
from api.db import dump
from api.db.migrate import DIRECTORY, load, migrate
from api.settings import Settings
from tests.api.conftest import NewDatabase
from tests.api.fault_injector import FaultInjector, FaultyRun, numbered, planned
from tests.api.serving import Api, assert_error, make_settings, serve_api, served
from tests.api.test_migrations import empty_database
from tests.api.test_process import environment
from tests.services import Postgres, SeaweedFS, free_port, until

if TYPE_CHECKING:
    from types_aiobotocore_s3.client import S3Client

# What another stack must not take over: its sandboxes, and who carried its turns.
OF_THE_STACK = {"sandboxes", "leases", "migrations", "holds"}
TABLES = (
    "SELECT relname FROM pg_class WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace"
)


def silent(_: str) -> None:
    """Nobody watches."""


@dataclass
class Stack:
    """The parts of a stack that a backup is of."""

    settings: Settings
    s3: S3Client

    async def rows(self) -> dict[str, list[str]]:
        """Every row of every table as text, by a client of its own."""
        conn = await asyncpg.connect(self.settings.database_url.get_secret_value())
        try:
            names = [row[0] for row in await conn.fetch(TABLES)]
            return {
                name: sorted(
                    row[0] for row in await conn.fetch(f'SELECT t::text FROM "{name}" AS t')
                )
                for name in sorted(names)
            }
        finally:
            await conn.close()

    async def objects(self) -> dict[tuple[str, str], tuple[str, dict[str, str]]]:
        """Every object's sha256 and metadata."""
        found = {}
        for bucket in ("s3_bucket", "s3_state_bucket"):
            name = getattr(self.settings, bucket)
            pages = self.s3.get_paginator("list_objects_v2").paginate(Bucket=name)
            keys = [item["Key"] async for page in pages for item in page.get("Contents", [])]
            for key in keys:
                answer = await self.s3.get_object(Bucket=name, Key=key)
                content = hashlib.sha256(await answer["Body"].read()).hexdigest()
                found[bucket, key] = (content, answer["Metadata"])
        return found

    async def put(self, key: str, data: bytes, *, state: bool = False, **more: Any) -> None:
        bucket = self.settings.s3_state_bucket if state else self.settings.s3_bucket
        await self.s3.put_object(Bucket=bucket, Key=key, Body=data, **more)


@contextlib.asynccontextmanager
async def buckets_of(s3: S3Client) -> AsyncIterator[dict[str, str]]:
    """Two buckets that go again: each takes volumes of the store, which has so many."""
    tag = uuid7().hex
    names = {"s3_bucket": f"files-{tag}", "s3_state_bucket": f"state-{tag}"}
    for name in names.values():
        await s3.create_bucket(Bucket=name)
    try:
        yield names
    finally:
        for name in names.values():
            pages = s3.get_paginator("list_objects_v2").paginate(Bucket=name)
            async for key in (
                item["Key"] async for page in pages for item in page.get("Contents", [])
            ):
                await s3.delete_object(Bucket=name, Key=key)
            await s3.delete_bucket(Bucket=name)


@pytest.fixture
async def busy(
    new_database: NewDatabase, store_service: SeaweedFS, s3: S3Client
) -> AsyncIterator[tuple[Api, Stack]]:
    """An api with a database and buckets of its own."""
    injector = FaultInjector()
    async with served(injector.app()) as sidecar_url, buckets_of(s3) as more:
        settings = make_settings(await new_database(), store_service, sidecar_url, **more)
        async with serve_api(settings, injector) as running:
            yield running, Stack(settings, s3)


@pytest.fixture
async def empty(
    postgres_server: Postgres, store_service: SeaweedFS, s3: S3Client
) -> AsyncIterator[Stack]:
    url = await empty_database(postgres_server)
    async with buckets_of(s3) as more:
        yield Stack(make_settings(url, store_service, "http://127.0.0.1:1", **more), s3)


async def turn_with_files(api: Api, stack: Stack, sid: UUID, files: dict[str, bytes]) -> UUID:
    """A turn whose receipt is of these files, which are in the store when it has ended."""
    documents: dict[UUID, bytes] = {}

    def plan(run: FaultyRun) -> None:
        entries = [
            {"path": path, "kind": "file", "sha256": hashlib.sha256(data).hexdigest()}
            for path, data in sorted(files.items())
        ]
        plain = {"v": 1, "turn_id": str(run.request.turn_id), "entries": entries}
        document = documents[run.request.turn_id] = json.dumps(plain).encode()
        receipt = {
            "engine": "weed",
            "files": len(files),
            "bytes": sum(map(len, files.values())),
            "manifest_sha256": hashlib.sha256(document).hexdigest(),
            "took": 0.1,
        }
        run.journal.extend(
            numbered(
                ("sandbox.ready", {"provider": "local", "sandbox_id": "box-1", "took": 0.2}),
                ("message", {"role": "assistant", "text": "line\nbreak\ttab \\N \u0000 ü"}),
                ("receipt", receipt),
                ("turn.completed", {"stop_reason": "end_turn"}),
            )
        )

    with planned(api.injector, plan):
        turn = await api.start(sid, "go\\N\n")
        for path, data in files.items():
            await stack.put(f"{sid}/{path}", data)
        await until(lambda: turn.id in documents, "the run starts")
        await stack.put(f"{sid}/manifests/{turn.id}.json", documents[turn.id], state=True)
        assert (await api.ended(turn)).state == "completed"
    return turn.id


async def backed_up(stack: Stack, *, wait: float = 20.0) -> tuple[Report, io.BytesIO]:
    file = io.BytesIO()
    report = await create(stack.settings, file, wait=wait, say=silent)
    file.seek(0)
    return report, file


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


async def test_sandboxes_of_the_old_stack_are_none_of_the_new_one(
    busy: tuple[Api, Stack], empty: Stack
) -> None:
    api, stack = busy
    await turn_with_files(api, stack, (await api.new_session()).id, {})
    _, file = await backed_up(stack)
    await restore(empty.settings, file, say=silent)
    (before,), (after,) = (await stack.rows())["sandboxes"], (await empty.rows())["sandboxes"]
    assert ",live," in before
    assert ",gone," in after
    assert "that was backed up" in after


async def test_a_restored_stack_serves_its_sessions(busy: tuple[Api, Stack], empty: Stack) -> None:
    api, stack = busy
    sid = (await api.new_session()).id
    await turn_with_files(api, stack, sid, {"a": b"1"})
    _, file = await backed_up(stack)
    await restore(empty.settings, file, say=silent)
    injector = FaultInjector()
    async with served(injector.app()) as sidecar_url:
        settings = empty.settings.model_copy(update={"sidecar_url": sidecar_url})
        async with serve_api(settings, injector) as restored:
            assert await restored.events(sid) == await api.events(sid)
            turn = await restored.ended(await restored.start(sid, "go on"))
            assert turn.state == "completed"


async def test_every_table_is_of_sessions_or_of_none(database: Any) -> None:
    async with database.connection() as conn:
        found = {table.name: table for table in await dump.tables(conn)}
        names = {row[0] for row in await conn.fetch(TABLES)}
    assert found.keys() == names - {"migrations", "holds"}
    for table in found.values():
        assert table.of_session or table.of_none, f"no row of {table.name} would be carried"
    owned = {name for name, table in found.items() if table.of_session}
    assert owned >= {"sessions", "turns", "events", "sandboxes", "leases", "permissions"}


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
    with planned(api.injector, lambda run: run.say("sandbox.creating", provider="local")):
        first = await api.start(other)
        await until(lambda: first.id in api.injector.runs, "the run starts")
    second = await api.start(other, queue=True)
    api.injector.runs[first.id].say("turn.completed", stop_reason="end_turn")
    return (await api.ended(second)).state == "completed"


async def test_a_hold_of_a_dead_backup_ends_by_itself(busy: tuple[Api, Stack]) -> None:
    api, stack = busy
    sid = (await api.new_session()).id
    conn = await asyncpg.connect(stack.settings.database_url.get_secret_value())
    try:
        await conn.execute(
            "INSERT INTO holds VALUES ($1, $2, now() + interval '1 second')", sid, uuid7()
        )
    finally:
        await conn.close()
    turn = await api.start(sid)
    assert (await api.ended(turn)).state == "completed"


async def test_two_backups_do_not_hold_the_same_session(busy: tuple[Api, Stack]) -> None:
    api, stack = busy
    sid = (await api.new_session()).id
    url = stack.settings.database_url.get_secret_value()
    async with Holder.open(url) as one, Holder.open(url) as other:
        await one.hold(sid)
        with pytest.raises(BackupError, match="Another backup"):
            await other.hold(sid)
        await one.release(sid)
        assert await other.hold(sid) is not None


def endless(run: FaultyRun) -> None:
    run.say("sandbox.creating", provider="local")


async def test_a_running_turn_is_waited_for_and_the_next_one_waits_for_the_backup(
    busy: tuple[Api, Stack], empty: Stack
) -> None:
    api, stack = busy
    sid = (await api.new_session()).id
    with planned(api.injector, endless):
        running = await api.start(sid)
        await until(lambda: running.id in api.injector.runs, "the run starts")
    async with asyncio.TaskGroup() as group:
        making = group.create_task(backed_up(stack))
        async with asyncio.timeout(20):
            while not (await stack.rows())["holds"]:
                await asyncio.sleep(0.02)
        queued = await api.start(sid, queue=True)
        api.injector.runs[running.id].say("turn.completed", stop_reason="end_turn")
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
    with planned(api.injector, endless):
        running = await api.start(sid)
        await until(lambda: running.id in api.injector.runs, "the run starts")
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
    busy: tuple[Api, Stack], empty: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    api, stack = busy
    sid = (await api.new_session()).id
    await turn_with_files(api, stack, sid, {"a": b"before"})
    copy_object = session._copy_object
    ran: list[UUID] = []

    async def with_a_turn_in_between(*args: Any) -> Any:
        copied = await copy_object(*args)
        if not ran:
            ran.append(sid)
            conn = await asyncpg.connect(stack.settings.database_url.get_secret_value())
            await conn.execute("UPDATE holds SET expires_at = '-infinity'")
            await conn.close()
            await turn_with_files(api, stack, sid, {"a": b"after!"})
        return copied

    monkeypatch.setattr(session, "_copy_object", with_a_turn_in_between)
    report, file = await backed_up(stack)
    assert ran
    assert (report.receipts, report.changed) == (2, {})
    await restore(empty.settings, file, say=silent)
    assert await empty.objects() == await stack.objects()
    assert (await empty.rows())["turns"] == (await stack.rows())["turns"]


async def test_what_a_user_changes_while_it_is_copied_is_copied_again_or_left_out(
    busy: tuple[Api, Stack], empty: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    api, stack = busy
    sid = (await api.new_session()).id
    await turn_with_files(api, stack, sid, {"a": b"1", "b": b"2", "c": b"3"})
    copy_object = session._copy_object
    done: list[str] = []

    async def with_a_user(archive: Any, objects: Any, name: str, key: str) -> Any:
        copied = await copy_object(archive, objects, name, key)
        if key.endswith("/a") and not done:
            done.append(key)
            await stack.put(f"{sid}/a", b"changed")
            await stack.put(f"{sid}/d", b"new")
            await stack.s3.delete_object(Bucket=stack.settings.s3_bucket, Key=f"{sid}/b")
            await stack.s3.delete_object(Bucket=stack.settings.s3_bucket, Key=f"{sid}/c")
        return copied

    monkeypatch.setattr(session, "_copy_object", with_a_user)
    report, file = await backed_up(stack)
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


async def test_a_cut_or_changed_file_is_refused_and_leaves_nothing(
    busy: tuple[Api, Stack], empty: Stack
) -> None:
    api, stack = busy
    for _ in range(2):
        await turn_with_files(api, stack, (await api.new_session()).id, {"a": os.urandom(3000)})
    _, file = await backed_up(stack)
    whole = file.getvalue()
    manifest = whole.rindex(b"manifest.json")
    broken = {
        "nothing": b"",
        "head only": whole[:1024],
        "half": whole[: len(whole) // 2],
        "no manifest": whole[:manifest],
        "no end of the manifest": whole[: manifest + 600],
        "no tar": b"x" * 4096,
        "one byte": _with_another_byte(whole, whole.index(b"go\\\\\\\\N")),
        "another manifest": _with_another_byte(whole, whole.rindex(b'"receipts":2') + 11),
    }
    for what, data in broken.items():
        with pytest.raises(BadBackup):
            await check(io.BytesIO(data), say=silent)
        with pytest.raises(BadBackup):
            await restore(empty.settings, io.BytesIO(data), say=silent)
        assert not any((await empty.rows()).values()), what
        assert await empty.objects() == {}, what
    await restore(empty.settings, io.BytesIO(whole), say=silent)
    assert await empty.objects() == await stack.objects()


def _with_another_byte(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


async def test_nothing_that_is_there_is_overwritten(busy: tuple[Api, Stack], empty: Stack) -> None:
    api, stack = busy
    await api.new_session()
    _, file = await backed_up(stack)
    with pytest.raises(NotEmpty, match="other connections"):
        await restore(stack.settings, file, say=silent)
    await empty.put("x/y", b"1")
    with pytest.raises(NotEmpty, match="x/y"):
        await restore(empty.settings, io.BytesIO(file.getvalue()), say=silent)
    await empty.s3.delete_object(Bucket=empty.settings.s3_bucket, Key="x/y")
    await restore(empty.settings, io.BytesIO(file.getvalue()), say=silent)
    with pytest.raises(NotEmpty, match="rows in sessions"):
        await restore(empty.settings, io.BytesIO(file.getvalue()), say=silent)


async def test_an_older_backup_is_migrated_and_a_newer_one_refused(
    busy: tuple[Api, Stack], empty: Stack, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    api, stack = busy
    await api.new_session()
    _, file = await backed_up(stack)
    with monkeypatch.context() as patched:
        patched.setattr(reading, "load", lambda: load()[:-1])
        with pytest.raises(BadBackup, match=f"has schema {len(load())}"):
            await restore(empty.settings, io.BytesIO(file.getvalue()), say=silent)
    newer = tmp_path / "migrations"
    shutil.copytree(DIRECTORY, newer)
    number = len(load()) + 1
    (newer / f"{number:04}_more.sql").write_text(
        "ALTER TABLE sessions ADD COLUMN more text NOT NULL DEFAULT 'by migration';"
    )
    monkeypatch.setattr(reading, "load", functools.partial(load, newer))
    monkeypatch.setattr(restoring, "migrate", functools.partial(migrate, directory=newer))
    await restore(empty.settings, io.BytesIO(file.getvalue()), say=silent)
    (row,) = (await empty.rows())["sessions"]
    assert "by migration" in row
    with pytest.raises(WrongSchema, match=f"schema {number}"):
        await backed_up(empty)


async def test_a_backup_that_is_stopped_leaves_no_file_and_no_hold(
    busy: tuple[Api, Stack], store_service: SeaweedFS, tmp_path: Path
) -> None:
    api, stack = busy
    sid = (await api.new_session()).id
    with planned(api.injector, endless):
        running = await api.start(sid)
        await until(lambda: running.id in api.injector.runs, "the run starts")
    url = stack.settings.database_url.get_secret_value()
    env = environment(url, store_service, stack.settings.sidecar_url, free_port()) | {
        "HOLDFAST_S3_BUCKET": stack.settings.s3_bucket,
        "HOLDFAST_S3_STATE_BUCKET": stack.settings.s3_state_bucket,
    }
    path = tmp_path / "backup.tar"
    argv = [sys.executable, "-m", "api.backup", "create", str(path)]
    pipe = asyncio.subprocess.PIPE
    making = await asyncio.create_subprocess_exec(*argv, env=env, stdout=pipe, stderr=pipe)
    try:
        async with asyncio.timeout(30):
            while not (await stack.rows())["holds"]:
                await asyncio.sleep(0.05)
        assert [each.name for each in tmp_path.iterdir()] == ["backup.tar.partial"]
        assert path.with_name("backup.tar.partial").stat().st_mode & 0o777 == 0o600
        making.send_signal(signal.SIGTERM)
        async with asyncio.timeout(20):
            _, said = await making.communicate()
    finally:
        if making.returncode is None:
            making.kill()
    assert making.returncode == 1
    assert b"stopped before it was done" in said
    assert list(tmp_path.iterdir()) == []
    assert (await stack.rows())["holds"] == []
    await api.http.post(f"/sessions/{sid}/turns/{running.id}/cancel")
    done = await asyncio.to_thread(subprocess.run, argv, env=env, capture_output=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["sessions"] == 1
    again = await asyncio.to_thread(subprocess.run, argv, env=env, capture_output=True, timeout=60)
    assert again.returncode == 1
    assert b"is there already" in again.stderr
