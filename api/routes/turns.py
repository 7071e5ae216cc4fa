"""/sessions/{sid}/turns"""

from __future__ import annotations

from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Query
from fastapi.responses import Response

from api.changes import changes
from api.services import Use
from contracts.bodies import Changes, Turn, TurnCreate, TurnPage

router = APIRouter(prefix="/sessions/{sid}/turns", tags=["turns"])


@router.post("", status_code=202)
async def start_turn(sid: UUID, body: TurnCreate, services: Use) -> Turn:
    """Start a turn. While one is running: 409 with its id, or with `queue` wait for its end."""
    return await services.turns.start(sid, body.prompt, body, queue=body.queue)


@router.get("")
async def list_turns(
    sid: UUID,
    services: Use,
    limit: Annotated[int, Query(ge=1, le=200)] = 100,
    cursor: Annotated[str | None, Query(max_length=1000)] = None,
) -> TurnPage:
    """Turns in the order of the conversation, then those that wait."""
    await services.sessions.get(sid)
    return await services.turns.page(sid, limit=limit, cursor=cursor)


@router.get("/{tid}")
async def get_turn(sid: UUID, tid: UUID, services: Use) -> Turn:
    """One turn, with its receipt or its error once it has ended."""
    await services.sessions.get(sid)
    return await services.turns.get(sid, tid)


@router.get(
    "/{tid}/manifest",
    response_class=Response,
    responses={200: {"description": "As it is stored.", "content": {"application/json": {}}}},
)
async def get_manifest(sid: UUID, tid: UUID, services: Use) -> Response:
    """The manifest of the turn's receipt: every file with its size and sha256."""
    await services.sessions.get(sid)
    await services.turns.get(sid, tid)
    return Response(await services.stores.manifest(sid, tid), media_type="application/json")


@router.get("/{tid}/changes")
async def get_changes(sid: UUID, tid: UUID, services: Use) -> Changes:
    """The files that the turn added, changed and removed, by its manifest and the one before."""
    await services.sessions.get(sid)
    await services.turns.get(sid, tid)
    before = await services.turns.proven_before(sid, tid)
    return await changes(services.stores, sid, tid, before)


@router.post("/{tid}/cancel", status_code=202)
async def cancel_turn(sid: UUID, tid: UUID, services: Use) -> Turn:
    """Ask for the end of a running turn (the end itself is an event), or of one that waits."""
    await services.sessions.get(sid)
    return await services.turns.cancel(sid, tid)
