"""/sessions/{sid}/files (from the store) and /sessions/{sid}/live (from the sandbox)"""

from __future__ import annotations

from contextlib import AsyncExitStack
from datetime import UTC
from email.utils import format_datetime
from typing import Annotated, Any
from uuid import UUID

from fastapi import APIRouter, Header, Query, Request
from fastapi.responses import Response, StreamingResponse
from starlette.convertors import Convertor, register_url_convertor

from api.paths import workspace_path
from api.services import Services, Use
from api.store import OpenFile
from api.streamed import OwnedStream, file_headers
from api.zipped import zipped
from contracts.bodies import Changed, FilePage, FilesDeleted, FolderCreate, Move
from contracts.errors import FileNotFound


class AnyPath(Convertor[str]):
    """Starlette's own `path` stops at a newline, which a file name may hold."""

    regex = "(?s:.*)"

    def convert(self, value: str) -> str:
        return value

    def to_string(self, value: str) -> str:
        return value


register_url_convertor("anypath", AnyPath())
router = APIRouter(prefix="/sessions/{sid}", tags=["files"])


@router.get("/files")
async def list_files(
    sid: UUID,
    services: Use,
    path: str = "",
    limit: Annotated[int, Query(ge=1, le=1000)] = 200,
    cursor: Annotated[str | None, Query(max_length=8000)] = None,
) -> FilePage:
    """What is stored in a directory of the workspace."""
    wanted = workspace_path(path, root=True)
    await services.sessions.get(sid)
    return await services.stores.sessions.list_directory(sid, wanted, limit=limit, cursor=cursor)


BYTES: dict[int | str, dict[str, Any]] = {
    200: {"description": "Its bytes, of the type that its name says.", "content": {"*/*": {}}}
}
RANGES: dict[int | str, dict[str, Any]] = {
    206: {"description": "The range that was asked for.", "content": {"*/*": {}}},
    304: {"description": "If-None-Match names this version."},
}


@router.get("/files/{path:anypath}", response_class=Response, responses=BYTES | RANGES)
async def read_file(
    sid: UUID,
    path: str,
    services: Use,
    download: bool = False,
    range: Annotated[str | None, Header()] = None,
    if_range: Annotated[str | None, Header()] = None,
    if_none_match: Annotated[str | None, Header()] = None,
) -> Response:
    """A stored file, or a range of it."""
    wanted = workspace_path(path)
    await services.sessions.get(sid)
    async with AsyncExitStack() as stack:
        file = await stack.enter_async_context(services.stores.sessions.open(sid, wanted, range))
        if file.content_range is not None and if_range is not None and if_range != file.etag:
            # the client has a part of another version: it gets all of this one
            await stack.aclose()
            file = await stack.enter_async_context(services.stores.sessions.open(sid, wanted))
        headers = {**file_headers(wanted, download=download), **_version(file)}
        if file.etag and if_none_match is not None and _named(file.etag, if_none_match):
            return Response(status_code=304, headers=headers)
        headers |= {"Content-Length": str(file.size), "Accept-Ranges": "bytes"}
        if file.content_range is not None:
            headers["Content-Range"] = file.content_range
        status = 200 if file.content_range is None else 206
        return OwnedStream(file.chunks, stack.pop_all(), status_code=status, headers=headers)


@router.put(
    "/files/{path:anypath}",
    status_code=201,
    openapi_extra={"requestBody": {"content": {"application/octet-stream": {}}}},
)
async def put_file(
    sid: UUID, path: str, services: Use, request: Request, replace: bool = True
) -> Changed:
    """Put a file into the workspace; the folders above it are made."""
    wanted = workspace_path(path)
    session = await services.sessions.get(sid)
    return await services.edits.put(session, wanted, request.stream(), replace=replace)


@router.delete("/files/{path:anypath}")
async def delete_file(sid: UUID, path: str, services: Use) -> FilesDeleted:
    """Delete a file, or a folder with all that is in it."""
    wanted = workspace_path(path)
    await services.sessions.get(sid)
    return await services.edits.delete(sid, wanted)


@router.post("/folders", status_code=201)
async def make_folder(sid: UUID, body: FolderCreate, services: Use) -> Changed:
    """Make a folder, and those above it."""
    wanted = workspace_path(body.path)
    await services.sessions.get(sid)
    return await services.edits.mkdir(sid, wanted)


@router.post("/move")
async def move(sid: UUID, body: Move, services: Use) -> Changed:
    """Give a file or a folder another name, where there is nothing yet."""
    source, target = workspace_path(body.source), workspace_path(body.target)
    await services.sessions.get(sid)
    return await services.edits.move(sid, source, target)


@router.get(
    "/zip",
    response_class=Response,
    responses={200: {"description": "A zip archive.", "content": {"application/zip": {}}}},
)
async def zip_folder(sid: UUID, services: Use, path: str = "") -> Response:
    """A folder as the store has it, or the whole workspace, as a zip archive."""
    wanted = workspace_path(path, root=True)
    session = await services.sessions.get(sid)
    store = services.stores.sessions
    if wanted and not await store.has_directory(f"{sid}/{wanted}"):
        raise FileNotFound(f"There is no folder {wanted!r}.", hint="Zip one that there is.")
    await services.archives.check(store, sid, wanted)
    name = wanted.rpartition("/")[2] or session.title or str(sid)
    headers = {**file_headers(f"{name}.zip", download=True), "Content-Type": "application/zip"}
    return StreamingResponse(zipped(store, sid, wanted), headers=headers)


def _version(file: OpenFile) -> dict[str, str]:
    at = file.modified_at.astimezone(UTC)
    modified = {"Last-Modified": format_datetime(at, usegmt=True)}
    return {"ETag": file.etag, **modified} if file.etag else modified


def _named(etag: str, header: str) -> bool:
    """Whether If-None-Match names this version."""
    names = [name.strip().removeprefix("W/") for name in header.split(",")]
    return etag in names or "*" in names


@router.get("/live")
async def list_live(
    sid: UUID,
    services: Use,
    path: str = "",
    limit: Annotated[int, Query(ge=1, le=1000)] = 1000,
    cursor: Annotated[str | None, Query(max_length=8000)] = None,
) -> FilePage:
    """What the session's sandbox sees in a directory right now."""
    params: dict[str, str | int] = {"path": workspace_path(path, root=True), "limit": limit}
    if cursor is not None:
        params["cursor"] = cursor
    await services.sessions.get(sid)
    return await services.sidecar.live(sid, params)


@router.get("/live/file", response_class=Response, responses=BYTES)
async def read_live(sid: UUID, path: str, services: Use, download: bool = False) -> Response:
    """A file as the session's sandbox sees it right now."""
    wanted = workspace_path(path)
    await services.sessions.get(sid)
    return await _live_file(services, sid, wanted, download)


async def _live_file(services: Services, sid: UUID, path: str, download: bool) -> Response:
    async with AsyncExitStack() as stack:
        answer = await stack.enter_async_context(services.sidecar.live_file(sid, path))
        headers = file_headers(path, download=download)
        if "content-length" in answer.headers and "content-encoding" not in answer.headers:
            headers["Content-Length"] = answer.headers["content-length"]
        return OwnedStream(answer.aiter_bytes(), stack.pop_all(), headers=headers)
