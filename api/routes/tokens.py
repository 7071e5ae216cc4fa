"""/me, /tokens and /audit: who asks, who may, and who did what."""

from __future__ import annotations

from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Query, Request

from api.auth import about, caller_of
from api.choices import storable
from api.routes.events import MAX_SEQ
from api.services import Use
from contracts.bodies import AuditPage, Me, NewToken, TokenBody, TokenCreate, TokenList

router = APIRouter(tags=["login"])


@router.get("/me")
async def me(request: Request) -> Me:
    """Whose token this is, and what it may."""
    caller = caller_of(request)
    return Me(name=caller.name, role=caller.role)


@router.post("/tokens", status_code=201)
async def create_token(body: TokenCreate, services: Use, request: Request) -> NewToken:
    """Make a token; this answer is the only place where it ever stands."""
    about(request, subject=body.name)
    return await services.tokens.create(body, caller_of(request).name)


@router.get("/tokens")
async def list_tokens(services: Use) -> TokenList:
    """The named tokens, without what they are; the stack's own is not among them."""
    return TokenList(tokens=await services.tokens.page())


@router.delete("/tokens/{name}")
async def delete_token(name: str, services: Use) -> TokenBody:
    """Revoke a token: it and the logins that were made with it are refused from now on."""
    storable("name", name)
    return await services.tokens.delete(name)


@router.get("/audit")
async def read_audit(
    services: Use,
    session: UUID | None = None,
    after: Annotated[int, Query(ge=0, lt=MAX_SEQ)] = 0,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
    cursor: Annotated[str | None, Query(max_length=1000)] = None,
) -> AuditPage:
    """Who changed what, or tried to, the newest first; with `after`, what came after that id."""
    return await services.audit.page(session_id=session, after=after, limit=limit, cursor=cursor)
