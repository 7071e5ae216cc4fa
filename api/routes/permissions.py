"""/sessions/{sid}/permissions"""

from __future__ import annotations

from uuid import UUID

from fastapi import APIRouter, Request

from api.auth import by
from api.choices import storable
from api.services import Use
from contracts.bodies import Permission, PermissionChoice, PermissionList

router = APIRouter(prefix="/sessions/{sid}/permissions", tags=["permissions"])


@router.get("")
async def list_permissions(sid: UUID, services: Use, pending: bool = False) -> PermissionList:
    """What the session's harnesses asked for, newest first; with `pending`, what still waits."""
    await services.sessions.get(sid)
    return PermissionList(permissions=await services.permissions.page(sid, pending=pending))


@router.post("/{pid}")
async def answer_permission(
    sid: UUID, pid: str, body: PermissionChoice, services: Use, request: Request
) -> Permission:
    """Answer once; whoever comes later gets 409 and is told who was first."""
    await services.sessions.get(sid)
    storable("permission_id", pid)
    return await services.permissions.answer(sid, pid, body.option_id, by(request))
