"""/sessions/{sid}/files (from the store) and /sessions/{sid}/live (from the sandbox)"""

from __future__ import annotations

from contextlib import AsyncExitStack
from datetime import UTC
from email.utils import format_datetime
from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Header, Query
from fastapi.responses import Response
from starlette.convertors import Convertor, register_url_convertor

from api.paths import workspace_path
from api.services import Services, Use
from api.store import OpenFile
from api.streamed import OwnedStream, file_headers
from contracts.bodies import FilePage


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


@router.get("/files/{path:anypath}", response_class=Response)
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
    limit: Annotated[int | None, Query(ge=1, le=1000)] = None,
    cursor: Annotated[str | None, Query(max_length=8000)] = None,
) -> FilePage:
    """What the session's sandbox sees in a directory right now."""
    params: dict[str, str | int] = {"path": workspace_path(path, root=True)}
    if limit is not None:
        params["limit"] = limit
    if cursor is not None:
        params["cursor"] = cursor
    await services.sessions.get(sid)
    return await services.sidecar.live(sid, params)


@router.get("/live/file", response_class=Response)
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
