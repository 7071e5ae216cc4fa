"""Files over the wire."""

from __future__ import annotations

from pathlib import Path
from uuid import UUID

import pytest
from starlette.responses import Response

from client import Holdfast
from contracts import errors
from contracts.bodies import FilePage
from tests.support.client.wire_server import FakeApi

CONTENT = bytes(range(256)) * 4


def names_in(directory: Path) -> list[str]:
    return [each.name for each in directory.iterdir()]


@pytest.fixture
def sid(api: FakeApi) -> UUID:
    names = [f"f{n}" for n in range(7)]
    api.files = dict.fromkeys([*names, "dir/ü #%?.bin"], CONTENT)
    api.live_files = {"f1": b"newer"}
    return api.add_session().id


async def test_all_pages_of_a_directory_are_listed(api: FakeApi, hf: Holdfast, sid: UUID) -> None:
    api.page = 3
    assert [entry.path async for entry in hf.files.list(sid)] == list(api.files)
    assert len(api.asked("/files?")) == 3


async def test_a_page_that_leads_to_itself_is_an_error(
    api: FakeApi, hf: Holdfast, sid: UUID
) -> None:
    page = FilePage(path="", entries=[], next_cursor="x")
    api.answers[f"/sessions/{sid}/files"] = Response(page.model_dump_json())
    with pytest.raises(errors.HoldfastError, match="own cursor"):
        _ = [entry async for entry in hf.files.list(sid)]


async def test_bytes_come_as_they_are(hf: Holdfast, sid: UUID) -> None:
    assert await hf.files.read(sid, "f1") == CONTENT
    assert await hf.files.read(sid, "dir/ü #%?.bin") == CONTENT
    assert await hf.live.read(sid, "f1") == b"newer"


async def test_a_range_is_half_open(hf: Holdfast, sid: UUID) -> None:
    assert await hf.files.read_range(sid, "f1", 10, 20) == CONTENT[10:20]
    assert await hf.files.read_range(sid, "f1", 1020, 9999) == CONTENT[1020:]
    with pytest.raises(errors.RangeNotSatisfiable):
        await hf.files.read_range(sid, "f1", len(CONTENT), len(CONTENT) + 1)
    with pytest.raises(errors.RangeNotSatisfiable):
        await hf.files.read_range(sid, "f1", 5, 5)


async def test_a_server_that_ignores_ranges_is_not_believed(
    api: FakeApi, hf: Holdfast, sid: UUID
) -> None:
    api.answers[f"/sessions/{sid}/files/f1"] = Response(CONTENT)
    with pytest.raises(errors.HoldfastError, match="range"):
        await hf.files.read_range(sid, "f1", 10, 20)


@pytest.mark.parametrize("path", ["..", "../..", "../events", "a/../../b", "/etc/passwd"])
async def test_a_path_cannot_reach_another_route(
    api: FakeApi, hf: Holdfast, sid: UUID, path: str
) -> None:
    with pytest.raises(errors.InvalidPath):
        await hf.files.read(sid, path)
    assert api.requests[-1].startswith(f"GET /sessions/{sid}/files/")


async def test_a_file_without_a_name_is_refused_here(api: FakeApi, hf: Holdfast, sid: UUID) -> None:
    with pytest.raises(errors.InvalidPath):
        await hf.files.read(sid, "")
    assert api.requests == []


async def test_a_session_id_cannot_reach_another_route(api: FakeApi, hf: Holdfast) -> None:
    api.answers["/sessions"] = Response("[]")
    with pytest.raises(errors.HoldfastError):
        await hf.sessions.get("../sessions")
    assert api.requests == ["GET /sessions/..%2Fsessions"]


async def test_a_download_is_whole(hf: Holdfast, sid: UUID, tmp_path: Path) -> None:
    to = tmp_path / "out.bin"
    assert await hf.files.download(sid, "f1", to) == len(CONTENT)
    assert to.read_bytes() == CONTENT
    assert names_in(tmp_path) == [to.name]


async def test_a_download_that_breaks_leaves_what_was_there(
    api: FakeApi, hf: Holdfast, sid: UUID, tmp_path: Path
) -> None:
    to = tmp_path / "out.bin"
    to.write_bytes(b"before")
    api.cut_files_after = 100
    with pytest.raises(errors.Unavailable):
        await hf.files.download(sid, "f1", to)
    assert to.read_bytes() == b"before"
    assert names_in(tmp_path) == [to.name]
