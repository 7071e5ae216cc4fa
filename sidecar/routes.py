"""The sidecar's routes: what the api may ask of it."""

from __future__ import annotations

from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Depends, Query, Request
from fastapi.responses import StreamingResponse

from contracts.bodies import (
    Capabilities,
    Destroyed,
    FilePage,
    HarnessBody,
    Health,
    Killed,
    PermissionAnswer,
    ProviderBody,
    Released,
    RunBody,
    RunRequest,
    SandboxList,
)
from contracts.errors import SandboxNotFound
from sidecar.harnesses.registry import HARNESSES
from sidecar.providers.registry import ROWS
from sidecar.runs.engine import Runs
from sidecar.workspace import live
from sidecar.workspace.engine import Workspace

open_router = APIRouter()
router = APIRouter()

NDJSON = "application/x-ndjson"


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
    engine = runs.sandboxes.engine
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
                engine=engine.name,
                engine_why=engine.why,
            )
            for row in ROWS.values()
        ],
        default_harness=settings.default_harness,
        default_provider=settings.default_provider,
    )


@router.post("/runs", status_code=202)
async def start_run(body: RunRequest, runs: RunsHere) -> RunBody:
    return await runs.start(body)


@router.get("/runs/{turn_id}")
async def get_run(turn_id: UUID, runs: RunsHere) -> RunBody:
    return runs.get(turn_id)


@router.get("/runs/{turn_id}/events")
async def follow_run(
    turn_id: UUID, runs: RunsHere, after: Annotated[int, Query(ge=0)] = 0
) -> StreamingResponse:
    runs.get(turn_id)
    return StreamingResponse(runs.follow(turn_id, after), media_type=NDJSON)


@router.post("/runs/{turn_id}/cancel", status_code=202)
async def cancel_run(turn_id: UUID, runs: RunsHere) -> RunBody:
    return runs.cancel(turn_id)


@router.post("/runs/{turn_id}/permissions/{permission_id}")
async def answer_permission(
    turn_id: UUID, permission_id: str, body: PermissionAnswer, runs: RunsHere
) -> RunBody:
    return await runs.answer(turn_id, permission_id, body)


@router.get("/sandboxes")
async def list_sandboxes(runs: RunsHere) -> SandboxList:
    return SandboxList(sandboxes=await runs.sandboxes.list())


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


@router.get("/sessions/{session_id}/live")
async def live_listing(session_id: UUID, runs: RunsHere, path: str = "") -> FilePage:
    return await live.listing(await _workspace(runs, session_id), path)


@router.get("/sessions/{session_id}/live/file")
async def live_file(session_id: UUID, runs: RunsHere, path: str) -> StreamingResponse:
    workspace = await _workspace(runs, session_id)
    first, size = await live.first_chunk(workspace, path)
    return StreamingResponse(
        live.content(workspace, path, first, size), media_type="application/octet-stream"
    )


async def _workspace(runs: Runs, session_id: UUID) -> Workspace:
    known = runs.sandboxes.live.get(session_id)
    if known is not None:
        workspace = await runs.sandboxes.providers[known.provider].workspace(str(session_id))
        if workspace is not None:
            return workspace
    raise SandboxNotFound(
        "the session has no workspace mounted right now",
        hint="Its files are in the durable view; the next turn mounts them again.",
    )
