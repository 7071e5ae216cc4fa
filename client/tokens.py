"""Who may use the stack, and who did what."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from uuid import UUID

from client.sessions import next_cursor
from client.wire import Wire, build, segment
from contracts.bodies import (
    AuditEntry,
    AuditPage,
    Me,
    NewToken,
    Role,
    TokenBody,
    TokenCreate,
    TokenList,
)

PAGE = 500


class Tokens:
    """`hf.tokens`; all but `me` are an admin's."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire

    async def me(self) -> Me:
        """Whose token this client has, and its role."""
        return await self._wire.call("GET", "/me", Me)

    async def create(self, name: str, role: Role) -> NewToken:
        """A new token; it is told this once.

        Raises: TokenExists, InvalidInput, RoleTooSmall.
        """
        body = build(TokenCreate, name=name, role=role)
        return await self._wire.call("POST", "/tokens", NewToken, body=body)

    async def list(self) -> list[TokenBody]:
        """The named tokens. Raises: RoleTooSmall."""
        return (await self._wire.call("GET", "/tokens", TokenList)).tokens

    async def delete(self, name: str) -> TokenBody:
        """Revokes a token and every login that was made with it.

        Raises: TokenNotFound, RoleTooSmall.
        """
        return await self._wire.call("DELETE", f"/tokens/{segment(name)}", TokenBody)

    async def audit(
        self, *, session_id: UUID | str | None = None, after: int = 0
    ) -> AsyncGenerator[AuditEntry, None]:
        """What was changed, or refused, the newest first; only entries after the id `after`.

        Raises: RoleTooSmall.
        """
        session = None if session_id is None else str(session_id)
        cursor: str | None = None
        while True:
            params = {"session": session, "after": after, "limit": PAGE, "cursor": cursor}
            page = await self._wire.call("GET", "/audit", AuditPage, params=params)
            for entry in page.entries:
                yield entry
            cursor = next_cursor(cursor, page.next_cursor)
            if cursor is None:
                return
