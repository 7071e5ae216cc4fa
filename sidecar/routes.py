"""The sidecar's routes: what the api may ask of it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Depends, Query, Request
from fastapi.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from contracts.bodies import (
    Agreed,
    Capabilities,
    Changed,
    Destroyed,
    FilePage,
    FilesDeleted,
    FolderCreate,
    HarnessBody,
    Health,
    Hold,
    Killed,
    Move,
    PermissionAnswer,
    ProviderBody,
    Released,
    RunBody,
    RunList,
    RunRequest,
    SandboxList,
    Terms,
)
from contracts.errors import SandboxNotFound
from sidecar.harnesses.registry import HARNESSES
from sidecar.providers.registry import ROWS
from sidecar.runs.engine import Runs
from sidecar.workspace import edits, live
from sidecar.workspace.engine import Workspace
from sidecar.workspace.manifest import Edit

open_router = APIRouter()
router = APIRouter()

NDJSON = "application/x-ndjson"
LISTED = 1000  # names of a directory in one answer
# A caller that changes objects for longer than this has hung.
HOLD_SECONDS = 900
HOLD_BEATS = 180


def _runs(request: Request) -> Runs:
    runs: Runs = request.app.state.runs
    return runs


RunsHere = Annotated[Runs, Depends(_runs)]


@open_router.get("/healthz")
async def healthz() -> Health:
    return Health()


@router.get("/capabilities")
async def capabilities(request: Request, runs: RunsHere) -> Capabilities:
    settings = request.app.state.settings
    troubles = await runs.sandboxes.troubles()
    return Capabilities(
        harnesses=[
            HarnessBody(name=h.name, title=h.title, can_ask=h.can_ask, efforts=list(h.efforts))
            for h in HARNESSES.values()
        ],
        providers=[
            ProviderBody(
                name=row.name,
                title=row.title,
                available=not troubles[row.name],
                reason=troubles[row.name],
                engine=runs.sandboxes.engine(row.name).name,
                engine_why=runs.sandboxes.engine(row.name).why,
                network=row.network,
            )
            for row in ROWS.values()
        ],
        default_harness=settings.default_harness,
        default_provider=settings.default_provider,
    )


@router.post("/runs", status_code=202)
async def start_run(body: RunRequest, runs: RunsHere) -> RunBody:
    return await runs.start(body)


@router.get("/runs")
async def list_running(runs: RunsHere) -> RunList:
    """The runs that have not ended."""
    return RunList(runs=runs.running())


@router.get("/runs/{turn_id}")
async def get_run(turn_id: UUID, runs: RunsHere) -> RunBody:
    return runs.get(turn_id)


@router.get("/runs/{turn_id}/events")
async def follow_run(
    turn_id: UUID, runs: RunsHere, after: Annotated[int, Query(ge=0)] = 0
) -> StreamingResponse:
    return StreamingResponse(await runs.follow(turn_id, after), media_type=NDJSON)


@router.post("/runs/{turn_id}/cancel", status_code=202)
async def cancel_run(turn_id: UUID, runs: RunsHere) -> RunBody:
    return runs.cancel(turn_id)


@router.post("/runs/{turn_id}/permissions/{permission_id}")
async def answer_permission(
    turn_id: UUID, permission_id: str, body: PermissionAnswer, runs: RunsHere
) -> RunBody:
    return await runs.answer(turn_id, permission_id, body)


@router.get("/sandboxes")
async def list_sandboxes(runs: RunsHere, measure: bool = False) -> SandboxList:
    return await runs.sandboxes.list(measure=measure)


@router.delete("/sandboxes/{provider}/{sandbox_id}")
async def destroy_sandbox(provider: str, sandbox_id: str, runs: RunsHere) -> Destroyed:
    return await runs.sandboxes.destroy(provider, sandbox_id)


@router.post("/sessions/{session_id}/kill")
async def kill(session_id: UUID, runs: RunsHere) -> Killed:
    return await runs.sandboxes.kill(session_id)


@router.delete("/sessions/{session_id}")
async def release(session_id: UUID, runs: RunsHere) -> Released:
    released = await runs.sandboxes.release(session_id)
    await runs.forget_session(session_id)
    return released


@router.put("/sessions/{session_id}/terms")
async def agree(session_id: UUID, body: Terms, runs: RunsHere) -> Agreed:
    await runs.sandboxes.gateway.open(str(session_id), body)
    return Agreed(session_id=session_id)


@router.get("/sessions/{session_id}/live")
async def live_listing(
    session_id: UUID,
    runs: RunsHere,
    path: str = "",
    limit: Annotated[int, Query(ge=1, le=LISTED)] = LISTED,
    cursor: str | None = None,
) -> FilePage:
    return await live.listing(await _workspace(runs, session_id), path, limit, cursor)


@router.get("/sessions/{session_id}/live/file")
async def live_file(session_id: UUID, runs: RunsHere, path: str) -> StreamingResponse:
    workspace = await _workspace(runs, session_id)
    first, size = await live.first_chunk(workspace, path)
    return StreamingResponse(
        live.content(workspace, path, first, size), media_type="application/octet-stream"
    )


@router.put("/sessions/{session_id}/mount/file")
async def put_file(
    session_id: UUID, request: Request, runs: RunsHere, path: str, replace: bool = True
) -> Changed:
    workspace = await _workspace(runs, session_id)
    return await edits.put(workspace, path, request.stream(), replace=replace)


@router.post("/sessions/{session_id}/mount/folder")
async def make_folder(session_id: UUID, body: FolderCreate, runs: RunsHere) -> Changed:
    return await edits.mkdir(await _workspace(runs, session_id), body.path)


@router.post("/sessions/{session_id}/mount/move")
async def move(session_id: UUID, body: Move, runs: RunsHere) -> Changed:
    return await edits.move(await _workspace(runs, session_id), body.source, body.target)


@router.delete("/sessions/{session_id}/mount/file")
async def delete_file(session_id: UUID, runs: RunsHere, path: str) -> FilesDeleted:
    return await edits.delete(await _workspace(runs, session_id), path)


@router.post("/sessions/{session_id}/hold")
async def hold(session_id: UUID, body: Hold, runs: RunsHere, request: Request) -> StreamingResponse:
    """Nothing mounts the workspace for as long as this answer is read: the api changes its objects
    meanwhile. Raises: WorkspaceMounted, WorkspaceBusy."""
    stack = contextlib.AsyncExitStack()
    await stack.enter_async_context(runs.sandboxes.unmounted(session_id))
    try:
        for edit in body.edits:
            noted = Edit(edit.source, edit.target)
            await request.app.state.manifests.edited(str(session_id), noted)
    except BaseException:
        await stack.aclose()
        raise
    return Holding(stack)


class Holding(StreamingResponse):
    """Held until the caller hangs up, or nobody has been heard to do so for too long."""

    def __init__(self, held: contextlib.AsyncExitStack) -> None:
        super().__init__(self._beats(), media_type=NDJSON)
        self._held = held

    async def _beats(self) -> AsyncIterator[bytes]:
        for _ in range(HOLD_BEATS):
            yield b"\n"
            await asyncio.sleep(HOLD_SECONDS / HOLD_BEATS)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with self._held:
            await super().__call__(scope, receive, send)


async def _workspace(runs: Runs, session_id: UUID) -> Workspace:
    workspace = await runs.sandboxes.mounted(session_id)
    if workspace is not None:
        return workspace
    raise SandboxNotFound(
        "the session has no workspace mounted right now",
        hint="Its files are in the durable view; the next turn mounts them again.",
    )
