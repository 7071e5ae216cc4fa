"""Who asks: a token as a bearer, or the cookie that the login link sets."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING
from uuid import UUID

from pydantic import SecretStr
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.errors import error_response
from api.owner import NAME as OWNER
from api.owner import OwnerToken
from api.roles import OPEN
from api.tokens import cookie_of
from contracts.bodies import Role
from contracts.errors import DatabaseUnavailable, Unauthenticated

if TYPE_CHECKING:
    from api.services import Services

log = logging.getLogger(__name__)

# What a program that has a token calls itself, for the record.
CLIENT_HEADER = "X-Holdfast-Client"
# Words that the record has a meaning for are nobody's name.
CLIENT = re.compile(r"(?!(?:auto|timeout|cancel|turn|page)\Z)[a-z0-9-]{1,32}")
COOKIE_SECONDS = 30 * 24 * 3600
# Whoever reads a stream is asked for again after this long: a token may have been revoked.
AGAIN_AFTER = 5.0

HINT = "Open the link that `holdfast up` printed, or send it as `Authorization: Bearer <token>`."
PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Holdfast</title></head>
<body><h1>Not logged in</h1>
<p>Open the link with <code>?token=…</code> that <code>holdfast up</code> printed.
<code>holdfast status</code> prints it again.</p></body></html>
"""


@dataclass(frozen=True)
class Caller:
    """Whoever has shown a token. `client` is the page, or what a program calls itself."""

    name: str
    role: Role
    client: str
    by_cookie: bool

    @property
    def by(self) -> str:
        """For the transcript: the owner by what was used, others by their name and that."""
        if self.name == OWNER:
            return self.client
        return self.name if self.client == "token" else f"{self.name}/{self.client}"


def cookie_name(secret: SecretStr) -> str:
    """Of this stack alone: browsers send a cookie to every port of a host, so that two stacks on
    one machine would otherwise replace each other's login. It tells nothing of the secret."""
    tag = hmac.digest(secret.get_secret_value().encode(), b"holdfast cookie name", hashlib.sha256)
    return f"holdfast-{tag.hex()[:8]}"


class Revoked(Exception):
    """The token that a stream was opened with is nobody's any more."""


class Login:
    """Lets nothing through without a token, whatever route it is for, and notes whose it is."""

    def __init__(self, app: ASGIApp, owner: OwnerToken, cookie: str) -> None:
        self._app = app
        self._owner = owner
        self._cookie = cookie

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
            return
        request = Request(scope)
        if (request.method, request.scope["path"]) == OPEN:
            await self._app(scope, receive, send)
            return
        try:
            answer = await self._answer(request)
        except DatabaseUnavailable as error:
            answer = error_response(error)
        if answer is not None:
            await answer(scope, receive, send)
            return
        try:
            await self._app(scope, receive, self._watched(request, send))
        except Revoked:
            # no status is left to say it with: the stream is cut, and whoever comes back is told
            log.info("request %s was cut: its token was revoked", request.state.request_id)

    async def _answer(self, request: Request) -> Response | None:
        """The answer to give instead of the route's, or None to go on.

        Raises: DatabaseUnavailable.
        """
        if (
            request.method == "GET"
            and request.scope["path"] == "/"
            and "token" in request.query_params
        ):
            return await self._login(request, request.query_params["token"])
        if "authorization" not in request.headers and self._cookie not in request.cookies:
            return _refuse(request, "This needs a token.")
        caller = await self._caller(request)
        if caller is None and "authorization" in request.headers:
            return _refuse(request, "The token is not the right one.")
        if caller is None:
            return _refuse(request, "The login is not valid any more.")
        request.state.caller = caller
        return None

    async def _login(self, request: Request, token: str) -> Response:
        given = _bytes(token)
        caller = await self._known(request, given, "page", cookie=False)
        if caller is None:
            return _refuse(request, "The token in this link is not the right one.")
        answer = RedirectResponse("/", status_code=303)
        answer.set_cookie(
            self._cookie,
            cookie_of(given),
            max_age=COOKIE_SECONDS,
            httponly=True,
            samesite="strict",
            path="/",
        )
        await _services(request).audit.record(request, caller, "login", answer.status_code)
        return answer

    async def _caller(self, request: Request) -> Caller | None:
        """Whoever the request's own token or cookie belongs to now.

        Raises: DatabaseUnavailable.
        """
        header = request.headers.get("authorization")
        if header is not None:
            scheme, _, given = header.partition(" ")
            if scheme.lower() != "bearer":
                return None
            named = request.headers.get(CLIENT_HEADER, "")
            client = named if CLIENT.fullmatch(named) else "token"
            return await self._known(request, _bytes(given.strip()), client, cookie=False)
        cookie = _bytes(request.cookies.get(self._cookie, ""))
        return await self._known(request, cookie, "page", cookie=True)

    async def _known(
        self, request: Request, secret: bytes, client: str, *, cookie: bool
    ) -> Caller | None:
        if self._is_owners(secret, cookie=cookie):
            return Caller(OWNER, "admin", client, cookie)
        known = await _services(request).tokens.find(secret, cookie=cookie)
        return None if known is None else Caller(known.name, known.role, client, cookie)

    def _is_owners(self, secret: bytes, *, cookie: bool) -> bool:
        if not cookie:
            return self._owner.is_token(secret)
        current = self._owner.current()
        return bool(current) and hmac.compare_digest(secret, cookie_of(current).encode())

    def _watched(self, request: Request, send: Send) -> Send:
        """A stream may last for days: it ends soon after the token that opened it."""
        clock = asyncio.get_running_loop().time
        asked = clock()

        async def watched(message: Message) -> None:
            nonlocal asked
            if message.get("more_body") and clock() - asked > AGAIN_AFTER:
                asked = clock()
                if await self._is_gone(request):
                    raise Revoked
            await send(message)

        return watched

    async def _is_gone(self, request: Request) -> bool:
        try:
            return await self._caller(request) is None
        except DatabaseUnavailable:
            return False  # nobody can tell now; asked again soon


def caller_of(request: Request) -> Caller:
    """Who asks; known for every request but those for what is open."""
    caller: Caller = request.state.caller
    return caller


def by(request: Request) -> str:
    """Who asks, for the transcript: the page, or what a program calls itself."""
    return caller_of(request).by


def about(request: Request, session_id: UUID | None = None, subject: str = "") -> None:
    """Tell the record what a request was about, where its path does not."""
    if session_id is not None:
        request.state.session_id = session_id
    if subject:
        request.state.subject = subject


def _services(request: Request) -> Services:
    services: Services = request.app.state.services
    return services


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def _refuse(request: Request, why: str) -> Response:
    if request.scope["path"] == "/" and "text/html" in request.headers.get("accept", ""):
        return HTMLResponse(PAGE, status_code=Unauthenticated.status)
    return error_response(Unauthenticated(why, hint=HINT))
