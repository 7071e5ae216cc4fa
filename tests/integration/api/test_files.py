"""Files of a session from the real store, and the live view over the wire."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any
from uuid import UUID

import httpx
import pytest
from uuid_utils.compat import uuid7

from api.store import open_stores
from contracts.bodies import FilePage
from tests.support.api.serving import TOKEN, Api, assert_error, make_settings, serve_api
from tests.support.services import SeaweedFS

if TYPE_CHECKING:
    from types_aiobotocore_s3.client import S3Client

BUCKET = "sessions"


async def put(s3: S3Client, contents: dict[str, bytes]) -> None:
    slots = asyncio.Semaphore(16)

    async def one(key: str, content: bytes) -> None:
        async with slots:
            await s3.put_object(Bucket=BUCKET, Key=key, Body=content)

    async with asyncio.TaskGroup() as group:
        for key, content in contents.items():
            group.create_task(one(key, content))


async def keys(s3: S3Client, prefix: str) -> list[str]:
    found = []
    pages = s3.get_paginator("list_objects_v2").paginate(Bucket=BUCKET, Prefix=prefix)
    async for page in pages:
        found += [item["Key"] for item in page.get("Contents", [])]
    return found


async def listing(api: Api, sid: UUID, path: str = "", **params: Any) -> FilePage:
    answer = await api.http.get(f"/sessions/{sid}/files", params={"path": path, **params})
    assert answer.status_code == 200, answer.text
    return FilePage.model_validate_json(answer.content)


async def test_a_directory_lists_its_files_and_directories(api: Api, s3: S3Client) -> None:
    sid = (await api.new_session()).id
    names = ["a.txt", "dir/b.txt", "dir/sub/c.txt", "dirt/d.txt", "ü \x01%+&?#.txt", "empty/"]
    await put(s3, {f"{sid}/{name}": b"12345" if name != "empty/" else b"" for name in names})
    root = await listing(api, sid)
    assert [(entry.name, entry.kind, entry.size) for entry in root.entries] == [
        ("a.txt", "file", 5),
        ("dir", "directory", None),
        ("dirt", "directory", None),
        ("empty", "directory", None),
        ("ü \x01%+&?#.txt", "file", 5),
    ]
    assert [entry.path for entry in (await listing(api, sid, "dir")).entries] == [
        "dir/b.txt",
        "dir/sub",
    ]
    assert (await listing(api, sid, "empty")).entries == []
    assert (await listing(api, (await api.new_session()).id)).entries == []
    for path in ("nowhere", "a.txt", "di"):
        answer = await api.http.get(f"/sessions/{sid}/files", params={"path": path})
        assert_error(answer, 404, "file_not_found")


async def test_more_keys_than_one_listing_has_are_listed_each_once(api: Api, s3: S3Client) -> None:
    sid, other = (await api.new_session()).id, (await api.new_session()).id
    contents = {f"{sid}/many/f{number:04}": b"x" for number in range(1000)}
    contents |= {f"{sid}/many/d{number:03}/deep": b"x" for number in range(20)}
    await put(s3, {**contents, f"{other}/kept": b"x"})
    seen: list[str] = []
    cursor: dict[str, str] = {}
    for _ in range(60):
        page = await listing(api, sid, "many", limit=101, **cursor)
        assert 0 < len(page.entries) <= 101
        seen += [entry.name for entry in page.entries]
        if page.next_cursor is None:
            break
        cursor = {"cursor": page.next_cursor}
    assert len(seen) == 1020
    assert set(seen) == {f"f{n:04}" for n in range(1000)} | {f"d{n:03}" for n in range(20)}
    answer = await api.http.get(
        f"/sessions/{sid}/files", params={"path": "", "cursor": cursor["cursor"]}
    )
    assert_error(answer, 400, "invalid_input")

    deleted = await api.http.delete(f"/sessions/{sid}")
    assert deleted.json() == {
        "session_id": str(sid),
        "sandboxes": 0,
        "objects": 1020,
        "state_objects": 0,
        "turns": 0,
        "events": 0,
    }
    assert await keys(s3, f"{sid}") == []
    assert await keys(s3, f"{other}/") == [f"{other}/kept"]
    assert api.injector.released[-1] == sid
    assert_error(await api.http.delete(f"/sessions/{sid}"), 404, "session_not_found")


async def test_a_prefix_delete_matches_whole_segments(
    api: Api, s3: S3Client, store_service: SeaweedFS
) -> None:
    root = f"prefix-{uuid7()}"
    names = ["a/1", "a/b/2", "ab/3", "a.txt", "a-b/4"]
    await put(s3, {f"{root}/{name}": b"x" for name in names})
    filer = f"http://{store_service.filer}/buckets/{BUCKET}/{root}"
    async with httpx.AsyncClient(trust_env=False) as http:
        for directory in ("a/hollow/deeper/", "ab/hollow/"):
            assert (await http.post(f"{filer}/{directory}")).is_success
        async with open_stores(api.settings) as stores:
            assert await stores.sessions.delete_tree(f"{root}/a") == 2
        assert await keys(s3, root) == [f"{root}/{name}" for name in ("a-b/4", "a.txt", "ab/3")]
        # directories without a key are gone as well, and the neighbour's are not
        assert (await http.get(f"{filer}/a/")).status_code == 404
        assert (await http.get(f"{filer}/ab/hollow/")).is_success


@pytest.fixture(scope="module")
async def ten(api: Api, s3: S3Client) -> str:
    """The address of a file that holds 0123456789."""
    sid = (await api.new_session()).id
    await put(s3, {f"{sid}/dir/ten.html": b"0123456789", f"{sid}/nothing": b""})
    return f"/sessions/{sid}/files/dir/ten.html"


async def test_a_file_is_its_bytes_and_can_do_nothing(api: Api, ten: str) -> None:
    answer = await api.http.get(ten)
    assert (answer.status_code, answer.content) == (200, b"0123456789")
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    assert answer.headers["content-security-policy"] == "sandbox"
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["content-length"] == "10"
    assert answer.headers["etag"].startswith('"781e5e245d69b566979b86e28d23f2c7-')
    assert "content-disposition" not in answer.headers
    unchanged = await api.http.get(ten, headers={"If-None-Match": answer.headers["etag"]})
    assert (unchanged.status_code, unchanged.content) == (304, b"")
    nothing = await api.http.get(ten.replace("dir/ten.html", "nothing"))
    assert (nothing.status_code, nothing.content) == (200, b"")


@pytest.mark.parametrize(
    ("asked", "status", "content", "told"),
    [
        ("bytes=0-3", 206, b"0123", "bytes 0-3/10"),
        ("bytes=4-", 206, b"456789", "bytes 4-9/10"),
        ("bytes=-3", 206, b"789", "bytes 7-9/10"),
        ("bytes=-99", 206, b"0123456789", "bytes 0-9/10"),
        ("bytes=8-99", 206, b"89", "bytes 8-9/10"),
        ("bytes=0-0,5-6", 200, b"0123456789", None),
        ("bytes=x-y", 200, b"0123456789", None),
        ("lines=1-2", 200, b"0123456789", None),
    ],
)
async def test_a_range_is_the_part_that_was_asked_for(
    api: Api, ten: str, asked: str, status: int, content: bytes, told: str | None
) -> None:
    answer = await api.http.get(ten, headers={"Range": asked})
    assert (answer.status_code, answer.content) == (status, content)
    assert answer.headers.get("content-range") == told
    assert answer.headers["content-length"] == str(len(content))


@pytest.mark.parametrize("asked", ["bytes=10-", "bytes=99-100", "bytes=-0"])
async def test_a_range_outside_the_file_is_416(api: Api, ten: str, asked: str) -> None:
    answer = await api.http.get(ten, headers={"Range": asked})
    assert_error(answer, 416, "range_not_satisfiable")
    assert answer.headers["content-range"] == "bytes */10"


async def test_a_range_of_another_version_is_the_whole_file(api: Api, ten: str) -> None:
    etag = (await api.http.get(ten)).headers["etag"]
    same = await api.http.get(ten, headers={"Range": "bytes=0-1", "If-Range": etag})
    other = await api.http.get(ten, headers={"Range": "bytes=0-1", "If-Range": '"old"'})
    assert (same.status_code, same.content) == (206, b"01")
    assert (other.status_code, other.content) == (200, b"0123456789")


async def test_a_download_has_its_name_in_every_script(api: Api, s3: S3Client) -> None:
    sid = (await api.new_session()).id
    await put(s3, {f'{sid}/ré"sumé;\r\n.txt': b"x"})
    answer = await api.http.get(
        f"/sessions/{sid}/files/r%C3%A9%22sum%C3%A9%3B%0D%0A.txt", params={"download": 1}
    )
    assert answer.status_code == 200
    assert answer.headers["content-disposition"] == (
        "attachment; filename=\"r__sum_;__.txt\"; filename*=UTF-8''r%C3%A9%22sum%C3%A9%3B%0D%0A.txt"
    )


@pytest.mark.parametrize(
    "path",
    [
        "%2e%2e/secret",
        "a/%2e%2e/%2e%2e/b",
        "..%2Fsecret",
        "%2Fetc%2Fpasswd",
        "a%00b",
        "a%5Cb",
        "a//b",
        "a/",
        "%2E/a",
        "a" * 1025,
    ],
)
async def test_a_path_out_of_the_workspace_is_refused(api: Api, path: str) -> None:
    sid = (await api.new_session()).id
    # as bytes on the wire: clients and proxies tidy paths up
    url = httpx.URL(api.url).copy_with(raw_path=f"/sessions/{sid}/files/{path}".encode())
    assert_error(await api.http.get(url), 400, "invalid_path")
    plain = httpx.QueryParams(f"path={path}")["path"]
    for route in ("files", "live", "live/file"):
        answer = await api.http.get(f"/sessions/{sid}/{route}", params={"path": plain})
        assert_error(answer, 400, "invalid_path")


async def test_a_path_that_no_client_would_send_is_refused_too(api: Api) -> None:
    sid = (await api.new_session()).id
    address = httpx.URL(api.url)
    for path in (f"/sessions/{sid}/files/a/../../../x", f"/sessions/{sid}/files/../turns"):
        reader, writer = await asyncio.open_connection(address.host, address.port)
        writer.write(
            f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
            f"Authorization: Bearer {TOKEN}\r\n\r\n".encode()
        )
        async with asyncio.timeout(10):
            answer = await reader.read()
        writer.close()
        await writer.wait_closed()
        assert answer.startswith(b"HTTP/1.1 400 ")
        assert b'"code":"invalid_path"' in answer


async def test_a_missing_file_is_404(api: Api, ten: str) -> None:
    for path in (ten + ".bak", ten.replace("/ten.html", ""), ten + "/below"):
        assert_error(await api.http.get(path), 404, "file_not_found")


async def test_the_live_view_comes_through_the_sidecar(api: Api) -> None:
    sid = (await api.new_session()).id
    api.injector.live = {"new.html": b"<script>" * 100_000}
    page = (await api.http.get(f"/sessions/{sid}/live")).json()
    assert [entry["name"] for entry in page["entries"]] == ["new.html"]
    answer = await api.http.get(f"/sessions/{sid}/live/file", params={"path": "new.html"})
    assert answer.content == b"<script>" * 100_000
    assert answer.headers["content-security-policy"] == "sandbox"
    missing = await api.http.get(f"/sessions/{sid}/live/file", params={"path": "old.html"})
    assert_error(missing, 404, "file_not_found")


async def test_a_store_that_is_away_is_503_and_ready_says_so(
    api: Api, store_service: SeaweedFS
) -> None:
    away = SeaweedFS("http://127.0.0.1:9", "k", "s", "", {})
    settings = make_settings(
        api.settings.database_url.get_secret_value(), away, api.settings.sidecar_url
    )
    async with serve_api(settings, api.injector) as cut_off:
        sid = (await cut_off.new_session()).id
        error = assert_error(
            await cut_off.http.get(f"/sessions/{sid}/files"), 503, "store_unavailable"
        )
        assert error["retryable"] is True
        assert_error(await cut_off.http.get(f"/sessions/{sid}/files/a"), 503, "store_unavailable")
        ready = await cut_off.http.get("/readyz")
        assert ready.status_code == 503
        parts = ready.json()["parts"]
        assert parts["database"] == "ok"
        assert parts["store"] != "ok"
        # a delete that could not be finished can be finished later
        assert_error(await cut_off.http.delete(f"/sessions/{sid}"), 503, "store_unavailable")
        refused = await cut_off.http.post(f"/sessions/{sid}/turns", json={"prompt": "x"})
        assert_error(refused, 409, "conflict")
    assert (await api.http.delete(f"/sessions/{sid}")).status_code == 200
