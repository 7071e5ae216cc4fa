"""The gateway's one port, for sandboxes that no socket of ours reaches: whose request it is follows
from its token. A tunnel carries it where the sandboxes are."""

from __future__ import annotations

import logging
from uuid import UUID

from starlette.types import Receive, Scope, Send

from contracts.session_tokens import session_of
from sidecar.gateway.exchange import Exchange
from sidecar.gateway.families import Family, error_body
from sidecar.gateway.sockets import SessionSockets

logger = logging.getLogger(__name__)

UNAUTHORIZED = 401
UUID_LENGTH = 36


class RemoteApp:
    """An ASGI app for all sessions that are open."""

    def __init__(self, secret: bytes, sockets: SessionSockets) -> None:
        self._secret = secret
        self._sockets = sockets

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        session_id = self._session(scope)
        app = None if session_id is None else self._sockets.app(session_id)
        if app is None:
            exchange = Exchange(scope, receive, send)
            family: Family = "anthropic" if "anthropic-version" in exchange.headers else "openai"
            message = "This token opens no session here."
            await exchange.answer(UNAUTHORIZED, error_body(family, UNAUTHORIZED, message))
            return
        await app(scope, receive, send)

    def _session(self, scope: Scope) -> UUID | None:
        headers = {name.lower(): value.decode("latin-1") for name, value in scope["headers"]}
        _, _, bearer = headers.get(b"authorization", "").partition(" ")
        named = session_of(self._secret, bearer or headers.get(b"x-api-key", ""))
        if named is None or len(named) != UUID_LENGTH:
            return None
        return UUID(named)
