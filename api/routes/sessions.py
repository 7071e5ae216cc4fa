"""/sessions"""

from __future__ import annotations

from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Query

from api.services import Use
from contracts.bodies import (
    Killed,
    Session,
    SessionCreate,
    SessionDeleted,
    SessionPage,
    SessionPatch,
)

router = APIRouter(prefix="/sessions", tags=["sessions"])


@router.post("", status_code=201)
async def create_session(body: SessionCreate, services: Use) -> Session:
    """Make a session; what is left out is the stack's default."""
    return await services.sessions.create(body)


@router.get("")
async def list_sessions(
    services: Use,
    limit: Annotated[int, Query(ge=1, le=200)] = 50,
    cursor: Annotated[str | None, Query(max_length=1000)] = None,
    archived: bool = False,
) -> SessionPage:
    """Sessions by their last activity, newest first; `archived=true` lists the archived ones."""
    return await services.sessions.page(limit=limit, cursor=cursor, archived=archived)


@router.get("/{sid}")
async def get_session(sid: UUID, services: Use) -> Session:
    """One session."""
    return await services.sessions.get(sid)


@router.patch("/{sid}")
async def patch_session(sid: UUID, body: SessionPatch, services: Use) -> Session:
    """Rename, archive, bring back."""
    return await services.sessions.patch(sid, body)


@router.delete("/{sid}")
async def delete_session(sid: UUID, services: Use) -> SessionDeleted:
    """Remove the session's sandbox, its files and its transcript, for good."""
    return await services.sessions.delete(sid)


@router.post("/{sid}/kill")
async def kill_sandbox(sid: UUID, services: Use) -> Killed:
    """SIGKILL the session's sandbox; files and transcript stay."""
    return await services.sessions.kill(sid)
