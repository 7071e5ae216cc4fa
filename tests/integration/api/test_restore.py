"""Backups that come back: where they may, and which are refused."""

from __future__ import annotations

import functools
import io
import os
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from api.backup import reading
from api.backup import restore as restoring
from api.backup.errors import (
    BadBackup,
    DatabaseInUse,
    NewerBackup,
    NotEmpty,
    StoreMismatch,
    WrongSchema,
)
from api.backup.objects import Objects
from api.backup.restore import check, restore
from api.db.migrate import DIRECTORY, load, migrate
from tests.support.api.backing import Stack, backed_up, silent, turn_with_files
from tests.support.api.fault_injector import FaultInjector
from tests.support.api.serving import Api, serve_api, served


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
    with pytest.raises(DatabaseInUse, match="other connections"):
        await restore(stack.settings, file, say=silent)
    await empty.put("x/y", b"1")
    with pytest.raises(NotEmpty, match="x/y"):
        await restore(empty.settings, io.BytesIO(file.getvalue()), say=silent)
    await empty.s3.delete_object(Bucket=empty.settings.s3_bucket, Key="x/y")
    await restore(empty.settings, io.BytesIO(file.getvalue()), say=silent)
    with pytest.raises(NotEmpty, match="sessions"):
        await restore(empty.settings, io.BytesIO(file.getvalue()), say=silent)


async def test_a_store_that_gives_back_other_bytes_fails_the_restore(
    busy: tuple[Api, Stack], empty: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    api, stack = busy
    await turn_with_files(api, stack, (await api.new_session()).id, {"a": b"1"})
    _, file = await backed_up(stack)
    put = Objects.put

    async def another(self: Objects, key: str, size: int, chunks: Any, metadata: Any) -> None:
        async def changed() -> AsyncIterator[bytes]:
            async for chunk in chunks:
                yield chunk[::-1] if not key.endswith("/a") else b"2"

        await put(self, key, size, changed(), metadata)

    monkeypatch.setattr(Objects, "put", another)
    with pytest.raises(StoreMismatch, match="does not give"):
        await restore(empty.settings, file, say=silent)
    assert not any((await empty.rows()).values())
    assert await empty.objects() == {}


async def test_an_older_backup_is_migrated_and_a_newer_one_refused(
    busy: tuple[Api, Stack], empty: Stack, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    api, stack = busy
    await api.new_session()
    _, file = await backed_up(stack)
    with monkeypatch.context() as patched:
        patched.setattr(reading, "load", lambda: load()[:-1])
        with pytest.raises(NewerBackup, match=str(len(load()))):
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
    with pytest.raises(WrongSchema, match=str(number)):
        await backed_up(empty)


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
