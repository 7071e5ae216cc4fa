"""/sessions"""

from __future__ import annotations

from typing import Annotated, Literal
from uuid import UUID

from fastapi import APIRouter, Query, Request

from api.auth import about, caller_of
from api.choices import storable
from api.db.search import sought
from api.db.sessions import Wanted
from api.services import Use
from contracts.bodies import (
    Destroyed,
    Killed,
    Session,
    SessionContents,
    SessionCreate,
    SessionDeleted,
    SessionPage,
    SessionPatch,
    SessionState,
)

router = APIRouter(prefix="/sessions", tags=["sessions"])


@router.post("", status_code=201)
async def create_session(body: SessionCreate, services: Use, request: Request) -> Session:
    """Make a session; what is left out is the stack's default."""
    session = await services.sessions.create(body, caller_of(request).name)
    about(request, session.id)
    return session


@router.get("")
async def list_sessions(
    services: Use,
    limit: Annotated[int, Query(ge=1, le=200)] = 50,
    cursor: Annotated[str | None, Query(max_length=1000)] = None,
    archived: bool | Literal["any"] = False,
    state: Annotated[list[SessionState], Query(max_length=10)] = [],  # noqa: B006 - FastAPI copies
    harness: Annotated[str | None, Query(max_length=100)] = None,
    provider: Annotated[str | None, Query(max_length=100)] = None,
    q: Annotated[str, Query(max_length=500)] = "",
) -> SessionPage:
    """Sessions by their last activity, newest first.

    `q` looks for words, each in the title or in the text of the transcript.
    """
    for name, text in (("harness", harness), ("provider", provider), ("q", q)):
        storable(name, text)
    wanted = Wanted(
        archived=None if archived == "any" else archived,
        states=state,
        harness=harness,
        provider=provider,
        sought=sought(q),
    )
    return await services.sessions.page(wanted, limit=limit, cursor=cursor)


@router.get("/{sid}")
async def get_session(sid: UUID, services: Use) -> Session:
    """One session."""
    return await services.sessions.get(sid)


@router.get("/{sid}/contents")
async def get_contents(sid: UUID, services: Use) -> SessionContents:
    """What a delete of the session would remove."""
    return await services.sessions.contents(sid)


@router.patch("/{sid}")
async def patch_session(sid: UUID, body: SessionPatch, services: Use) -> Session:
    """Rename, archive, bring back, change the budget."""
    return await services.sessions.patch(sid, body)


@router.delete("/{sid}")
async def delete_session(sid: UUID, services: Use) -> SessionDeleted:
    """Remove the session's sandbox, its files and its transcript, for good."""
    return await services.sessions.delete(sid)


@router.post("/{sid}/kill")
async def kill_sandbox(sid: UUID, services: Use) -> Killed:
    """SIGKILL the session's sandbox; files and transcript stay."""
    return await services.sessions.kill(sid)


@router.post("/{sid}/destroy")
async def destroy_sandbox(sid: UUID, services: Use) -> Destroyed:
    """End the session's sandbox in an orderly way, and prove it; not while a turn uses it."""
    return await services.sessions.destroy(sid)
