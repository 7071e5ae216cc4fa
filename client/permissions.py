"""What harnesses ask for, and the answers."""

from __future__ import annotations

from client.sessions import Id, session_path
from client.wire import Wire, build, segment
from contracts.bodies import Permission, PermissionChoice, PermissionList


class Permissions:
    """`hf.permissions`."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire

    async def list(self, session_id: Id, *, pending: bool = False) -> list[Permission]:
        """What was asked in a session, newest first; with `pending`, what waits for an answer.

        Raises: SessionNotFound.
        """
        path = f"{session_path(session_id)}/permissions"
        answer = await self._wire.call("GET", path, PermissionList, params={"pending": pending})
        return answer.permissions

    async def answer(self, session_id: Id, permission_id: str, option_id: str) -> Permission:
        """Answers with one of its options; the first answer counts.

        Raises: SessionNotFound, PermissionNotFound, AlreadyAnswered, InvalidInput.
        """
        path = f"{session_path(session_id)}/permissions/{segment(permission_id)}"
        body = build(PermissionChoice, option_id=option_id)
        return await self._wire.call("POST", path, Permission, body=body)
