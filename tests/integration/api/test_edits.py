"""Files put, moved and deleted in the real store, while no sandbox has the workspace mounted."""

from __future__ import annotations

import asyncio
import hashlib
import io
import json
import os
import zipfile
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pytest
from uuid_utils.compat import uuid7

from contracts.bodies import Changes
from contracts.errors import SidecarUnavailable, WorkspaceMounted
from tests.integration.api.test_files import keys, put
from tests.support.api.database import NewDatabase
from tests.support.api.fault_injector import FaultInjector, planned
from tests.support.api.serving import Api, assert_error, make_settings, serve_api, served
from tests.support.names import TURN_COMPLETED
from tests.support.services import SeaweedFS

if TYPE_CHECKING:
    from types_aiobotocore_s3.client import S3Client


async def session_with(api: Api, s3: S3Client, *paths: str) -> UUID:
    sid = (await api.new_session()).id
    await put(s3, {f"{sid}/{path}": path.encode() for path in paths})
    return sid


async def names(s3: S3Client, sid: UUID) -> list[str]:
    found = [key.removeprefix(f"{sid}/") for key in await keys(s3, f"{sid}/")]
    return [name for name in found if not name.endswith("/")]


async def content(s3: S3Client, sid: UUID, path: str) -> bytes:
    answer = await s3.get_object(Bucket="sessions", Key=f"{sid}/{path}")
    async with answer["Body"] as body:
        return bytes(await body.read())


async def test_a_file_is_put_with_the_folders_above_it(api: Api, s3: S3Client) -> None:
    sid = await session_with(api, s3)
    answer = await api.http.put(f"/sessions/{sid}/files/a/b/ü 1.txt", content=b"hello")
    assert answer.status_code == 201, answer.text
    told = answer.json()
    assert (told["path"], told["size"], told["via"]) == ("a/b/ü 1.txt", 5, "store")
    assert await content(s3, sid, "a/b/ü 1.txt") == b"hello"
    answer = await api.http.put(f"/sessions/{sid}/files/a/b/ü 1.txt", content=b"")
    assert answer.status_code == 201
    assert await content(s3, sid, "a/b/ü 1.txt") == b""


async def test_a_large_file_is_streamed_and_leaves_nothing_beside_it(
    api: Api, s3: S3Client
) -> None:
    sid = await session_with(api, s3)
    piece = os.urandom(1 << 20)

    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(30):
            yield piece

    answer = await api.http.put(f"/sessions/{sid}/files/big.bin", content=pieces())
    assert answer.status_code == 201, answer.text
    assert answer.json()["size"] == 30 << 20
    stored = hashlib.sha256(await content(s3, sid, "big.bin")).hexdigest()
    assert stored == hashlib.sha256(piece * 30).hexdigest()
    left = await s3.list_objects_v2(Bucket="state", Prefix=f"{sid}/uploads/")
    assert left["KeyCount"] == 0


async def test_an_upload_that_breaks_off_leaves_nothing(api: Api, s3: S3Client) -> None:
    sid = await session_with(api, s3)

    async def broken() -> AsyncIterator[bytes]:
        yield b"x" * (9 << 20)
        raise ConnectionAbortedError

    with pytest.raises(ConnectionAbortedError):
        await api.http.put(f"/sessions/{sid}/files/big.bin", content=broken())
    async with asyncio.timeout(10):
        while True:
            left = await s3.list_objects_v2(Bucket="state", Prefix=f"{sid}/uploads/")
            unfinished = await s3.list_multipart_uploads(Bucket="state", Prefix=f"{sid}/")
            if left["KeyCount"] == 0 and not unfinished.get("Uploads"):
                break
            await asyncio.sleep(0.05)
    assert await names(s3, sid) == []


async def test_what_is_there_is_replaced_only_when_that_is_wanted(api: Api, s3: S3Client) -> None:
    sid = await session_with(api, s3, "a.txt", "dir/b.txt")
    path = f"/sessions/{sid}/files"
    answer = await api.http.put(f"{path}/a.txt", content=b"new", params={"replace": "false"})
    assert_error(answer, 409, "file_exists")
    assert_error(await api.http.put(f"{path}/dir", content=b"new"), 409, "file_exists")
    assert_error(await api.http.put(f"{path}/a.txt/below", content=b"new"), 400, "invalid_path")
    for bad in ("..%2Fx", "a//b", "%2Fabs", "a/..%2Fb"):
        assert_error(await api.http.put(f"{path}/{bad}", content=b""), 400, "invalid_path")
    assert await names(s3, sid) == ["a.txt", "dir/b.txt"]
    assert await content(s3, sid, "a.txt") == b"a.txt"


async def test_a_folder_is_made_once_and_listed(api: Api, s3: S3Client) -> None:
    sid = await session_with(api, s3, "a.txt")
    path = f"/sessions/{sid}/folders"
    made = await api.http.post(path, json={"path": "new/deep"})
    assert made.status_code == 201, made.text
    assert_error(await api.http.post(path, json={"path": "new/deep"}), 409, "file_exists")
    assert_error(await api.http.post(path, json={"path": "a.txt"}), 409, "file_exists")
    assert_error(await api.http.post(path, json={"path": "a.txt/x"}), 400, "invalid_path")
    listed = await api.http.get(f"/sessions/{sid}/files", params={"path": "new"})
    assert [(e["name"], e["kind"]) for e in listed.json()["entries"]] == [("deep", "directory")]


async def test_a_delete_touches_whole_segments_only(api: Api, s3: S3Client) -> None:
    sid = await session_with(api, s3, "a/1", "a/b/2", "ab/3", "a.txt", "a-b/4")
    other = await session_with(api, s3, "a/1")
    answer = await api.http.delete(f"/sessions/{sid}/files/a")
    assert answer.json() == {"path": "a", "files": 2, "directories": 2, "via": "store"}
    assert await names(s3, sid) == ["a-b/4", "a.txt", "ab/3"]
    assert await names(s3, other) == ["a/1"]
    listed = await api.http.get(f"/sessions/{sid}/files")
    assert [e["name"] for e in listed.json()["entries"]] == ["a-b", "a.txt", "ab"]
    assert_error(await api.http.delete(f"/sessions/{sid}/files/a"), 404, "file_not_found")
    assert (await api.http.delete(f"/sessions/{sid}/files/a.txt")).json()["files"] == 1
    assert_error(await api.http.delete(f"/sessions/{sid}/files/"), 400, "invalid_path")
    assert_error(await api.http.delete(f"/sessions/{sid}/files/a%2F.."), 400, "invalid_path")
    assert await names(s3, sid) == ["a-b/4", "ab/3"]


async def test_more_files_than_a_listing_has_are_deleted_and_moved(api: Api, s3: S3Client) -> None:
    many = [f"many/{n:04}" for n in range(1003)]
    sid = await session_with(api, s3, *many, "many2")
    moved = await api.http.post(
        f"/sessions/{sid}/move", json={"source": "many", "target": "lots"}, timeout=120
    )
    assert moved.status_code == 200, moved.text
    assert len(await names(s3, sid)) == 1004
    deleted = (await api.http.delete(f"/sessions/{sid}/files/lots")).json()
    assert deleted["files"] == 1003
    assert await names(s3, sid) == ["many2"]


async def test_a_move_takes_all_of_a_folder_and_nothing_beside_it(api: Api, s3: S3Client) -> None:
    sid = await session_with(api, s3, "a/1", "a/b/2", "a/empty/", "ab/3", "x.txt")
    path = f"/sessions/{sid}/move"
    answer = await api.http.post(path, json={"source": "a", "target": "new/a"})
    assert (answer.json()["path"], answer.json()["kind"]) == ("new/a", "directory")
    assert await names(s3, sid) == ["ab/3", "new/a/1", "new/a/b/2", "x.txt"]
    assert await content(s3, sid, "new/a/b/2") == b"a/b/2"
    listed = await api.http.get(f"/sessions/{sid}/files", params={"path": "new/a"})
    assert [e["name"] for e in listed.json()["entries"]] == ["1", "b", "empty"]
    assert_error(
        await api.http.get(f"/sessions/{sid}/files", params={"path": "a"}), 404, "file_not_found"
    )
    for source, target, status, code in (
        ("a", "b", 404, "file_not_found"),
        ("x.txt", "ab", 409, "file_exists"),
        ("ab", "x.txt", 409, "file_exists"),
        ("new", "new/deeper", 400, "invalid_path"),
        ("x.txt", "ab/3/y", 400, "invalid_path"),
        ("x.txt", "../y", 400, "invalid_path"),
        ("../x", "y", 400, "invalid_path"),
    ):
        answer = await api.http.post(path, json={"source": source, "target": target})
        assert_error(answer, status, code)
    assert (await api.http.post(path, json={"source": "x.txt", "target": "ab/y"})).is_success
    assert await names(s3, sid) == ["ab/3", "ab/y", "new/a/1", "new/a/b/2"]


async def test_while_it_is_mounted_a_change_goes_through_the_mount(api: Api, s3: S3Client) -> None:
    sid = await session_with(api, s3, "a.txt")
    api.injector.mounted.add(sid)
    base = f"/sessions/{sid}"
    assert (await api.http.put(f"{base}/files/b.txt", content=b"x" * 99)).json()["via"] == "mount"
    big = os.urandom(6 << 20)
    assert (await api.http.put(f"{base}/files/c", content=big)).json()["via"] == "mount"
    assert (await api.http.post(f"{base}/folders", json={"path": "d"})).json()["via"] == "mount"
    moved = await api.http.post(f"{base}/move", json={"source": "a.txt", "target": "e"})
    assert moved.json()["via"] == "mount"
    assert (await api.http.delete(f"{base}/files/a.txt")).json()["via"] == "mount"
    digest = hashlib.sha256(big).hexdigest()
    assert api.injector.changed == [
        ("put", "b.txt", hashlib.sha256(b"x" * 99).hexdigest()),
        ("put", "c", digest),
        ("mkdir", "d"),
        ("move", "a.txt", "e"),
        ("delete", "a.txt"),
    ]
    assert await names(s3, sid) == ["a.txt"], "the store was changed behind the mount's back"


async def test_objects_change_only_while_nothing_can_mount_them(api: Api, s3: S3Client) -> None:
    sid = await session_with(api, s3, "a.txt")
    api.injector.hold_errors += [WorkspaceMounted("just now")] * 2
    await api.http.post(f"/sessions/{sid}/move", json={"source": "a.txt", "target": "b.txt"})
    assert api.injector.holds[-1] == (sid, [{"source": "a.txt", "target": "b.txt"}])
    assert await names(s3, sid) == ["b.txt"]
    api.injector.hold_errors += [WorkspaceMounted("always")] * 50
    answer = await api.http.delete(f"/sessions/{sid}/files/b.txt")
    assert assert_error(answer, 503, "workspace_busy")["retryable"]
    assert await names(s3, sid) == ["b.txt"]
    api.injector.hold_errors.clear()
    before = len(api.injector.holds)
    assert_error(await api.http.delete(f"/sessions/{sid}/files/zz"), 404, "file_not_found")
    assert len(api.injector.holds) == before, "what is not there needs no hold, and no note"


async def test_a_change_is_not_acknowledged_when_the_workspace_was_let_go_meanwhile(
    api: Api, s3: S3Client
) -> None:
    sid = await session_with(api, s3, *(f"d/{number}" for number in range(100)))
    api.injector.let_go.set()
    answer = await api.http.post(f"/sessions/{sid}/move", json={"source": "d", "target": "e"})
    assert assert_error(answer, 503, "workspace_busy")["retryable"]
    assert len(await names(s3, sid)) >= 100, "something is lost"
    assert any(name.startswith("d/") for name in await names(s3, sid)), "it went on to the end"
    api.injector.let_go.clear()
    answer = await api.http.put(f"/sessions/{sid}/files/f", content=b"f")
    assert answer.status_code == 201, answer.text


async def test_an_upload_to_a_session_that_is_deleted_meanwhile_leaves_nothing(
    api: Api, s3: S3Client
) -> None:
    sid = await session_with(api, s3, "a.txt")

    async def pieces() -> AsyncIterator[bytes]:
        yield b"first"
        assert (await api.http.delete(f"/sessions/{sid}")).status_code == 200
        yield b"rest"

    answer = await api.http.put(f"/sessions/{sid}/files/late.txt", content=pieces())
    assert_error(answer, 404, "session_not_found")
    assert await names(s3, sid) == []


async def test_a_change_of_a_session_that_is_being_deleted_is_refused(
    api: Api, s3: S3Client
) -> None:
    sid = await session_with(api, s3, "a.txt")
    api.injector.release_errors.append(SidecarUnavailable("away"))
    assert (await api.http.delete(f"/sessions/{sid}")).status_code == 503
    assert_error(await api.http.put(f"/sessions/{sid}/files/b.txt", content=b"b"), 409, "conflict")
    assert_error(await api.http.delete(f"/sessions/{sid}/files/a.txt"), 409, "conflict")
    assert await names(s3, sid) == ["a.txt"]


async def test_an_upload_over_the_limit_is_refused(
    new_database: NewDatabase, store_service: SeaweedFS, s3: S3Client
) -> None:
    injector = FaultInjector()
    async with served(injector.app()) as url:
        settings = make_settings(await new_database(), store_service, url, upload_bytes=100_000)
        async with serve_api(settings, injector) as api:
            sid = (await api.new_session()).id
            path = f"/sessions/{sid}/files/a.bin"
            assert (await api.http.put(path, content=b"x" * 100_000)).status_code == 201
            assert_error(await api.http.put(path, content=b"x" * 100_001), 413, "too_large")

            async def undeclared() -> AsyncIterator[bytes]:
                for _ in range(11):
                    yield b"y" * 10_000

            assert_error(await api.http.put(path, content=undeclared()), 413, "too_large")
            assert await content(s3, sid, "a.bin") == b"x" * 100_000


async def test_a_folder_is_zipped_with_names_relative_to_it(api: Api, s3: S3Client) -> None:
    sid = await session_with(api, s3, "d/a.txt", "d/e/ü.txt", "dd/no.txt", "d/empty/")
    big = os.urandom(3 << 20)
    await put(s3, {f"{sid}/d/big.bin": big})
    answer = await api.http.get(f"/sessions/{sid}/zip", params={"path": "d"})
    assert answer.headers["content-type"] == "application/zip"
    assert 'filename="d.zip"' in answer.headers["content-disposition"]
    with zipfile.ZipFile(io.BytesIO(answer.content)) as archive:
        assert archive.testzip() is None
        files = {n: archive.read(n) for n in archive.namelist() if not n.endswith("/")}
    assert files == {"a.txt": b"d/a.txt", "e/ü.txt": "d/e/ü.txt".encode(), "big.bin": big}
    whole = await api.http.get(f"/sessions/{sid}/zip")
    with zipfile.ZipFile(io.BytesIO(whole.content)) as archive:
        assert "dd/no.txt" in archive.namelist()
    missing = await api.http.get(f"/sessions/{sid}/zip", params={"path": "nope"})
    assert_error(missing, 404, "file_not_found")
    empty = (await api.new_session()).id
    answer = await api.http.get(f"/sessions/{empty}/zip")
    assert zipfile.ZipFile(io.BytesIO(answer.content)).namelist() == []


def manifest(sid: UUID, tid: UUID, **files: Any) -> bytes:
    entries = [
        {"path": path.replace("__", "/"), "kind": "file", "size": len(text), "sha256": text}
        for path, text in files.items()
    ]
    head = {"v": 1, "session_id": str(sid), "turn_id": str(tid), "epoch": 1, "engine": "weed"}
    return json.dumps({**head, "entries": entries}).encode()


async def test_changes_are_those_since_the_last_receipt(api: Api, s3: S3Client) -> None:
    sid = (await api.new_session()).id
    told: list[Changes] = []
    documents = [
        {"same": "1", "gone": "22", "other": "3"},
        {"same": "1", "other": "4444", "new__file": "5"},
    ]
    first: UUID | None = None
    for files in documents:
        turn = await api.ended(await api.start(sid))
        assert turn.receipt is not None
        body = manifest(sid, turn.id, **files)
        await s3.put_object(Bucket="state", Key=f"{sid}/manifests/{turn.id}.json", Body=body)
        answer = await api.http.get(f"/sessions/{sid}/turns/{turn.id}/changes")
        assert answer.status_code == 200, answer.text
        told.append(Changes.model_validate_json(answer.content))
        assert told[-1].since == first
        first = turn.id
    assert [c.path for c in told[0].added] == ["gone", "other", "same"]
    assert [c.path for c in told[1].added] == ["new/file"]
    assert [(c.path, c.size, c.size_before) for c in told[1].changed] == [("other", 4, 1)]
    assert [(c.path, c.size, c.size_before) for c in told[1].removed] == [("gone", None, 2)]
    assert not told[1].cut
    answer = await api.http.get(f"/sessions/{sid}/turns/{uuid7()}/changes")
    assert_error(answer, 404, "turn_not_found")


async def test_a_turn_without_a_receipt_is_no_base_of_changes(api: Api, s3: S3Client) -> None:
    sid = (await api.new_session()).id
    first = await api.ended(await api.start(sid))
    with planned(api.injector, lambda run: run.say(TURN_COMPLETED)):
        unproven = await api.ended(await api.start(sid))
    assert unproven.receipt is None
    last = await api.ended(await api.start(sid))
    for turn, text in ((first, "old"), (unproven, "half"), (last, "new")):
        key = f"{sid}/manifests/{turn.id}.json"
        await s3.put_object(Bucket="state", Key=key, Body=manifest(sid, turn.id, file=text))
    answer = await api.http.get(f"/sessions/{sid}/turns/{last.id}/changes")
    changes = Changes.model_validate_json(answer.content)
    assert changes.since == first.id
    assert [(c.path, c.size_before) for c in changes.changed] == [("file", 3)]


async def test_a_long_list_of_changes_is_cut(api: Api, s3: S3Client) -> None:
    sid = (await api.new_session()).id
    turn = await api.ended(await api.start(sid))
    answer = await api.http.get(f"/sessions/{sid}/turns/{turn.id}/changes")
    assert_error(answer, 404, "not_found")
    body = manifest(sid, turn.id, **{f"f{n}": "x" for n in range(1500)})
    await s3.put_object(Bucket="state", Key=f"{sid}/manifests/{turn.id}.json", Body=body)
    answer = await api.http.get(f"/sessions/{sid}/turns/{turn.id}/changes")
    changes = Changes.model_validate_json(answer.content)
    assert (len(changes.added), changes.cut) == (1000, True)
