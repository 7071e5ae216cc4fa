"""Who may ask: the token as a bearer, or a cookie that the login link sets."""

from __future__ import annotations

import hashlib
import hmac
import re

from pydantic import SecretStr
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from api.errors import error_response
from contracts.errors import Unauthenticated

# What a program that has the token calls itself, for the record.
CLIENT_HEADER = "X-Holdfast-Client"
# Words that the record has a meaning for are nobody's name.
CLIENT = re.compile(r"(?!(?:auto|timeout|cancel|turn|page)\Z)[a-z0-9-]{1,32}")
COOKIE = "holdfast"
COOKIE_SECONDS = 30 * 24 * 3600
OPEN = ("GET", "/healthz")
SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})

HINT = "Open the link that `holdfast up` printed, or send it as `Authorization: Bearer <token>`."
PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Holdfast</title></head>
<body><h1>Not logged in</h1>
<p>Open the link with <code>?token=…</code> that <code>holdfast up</code> printed.
<code>holdfast status</code> prints it again.</p></body></html>
"""


class Gate:
    """Lets nothing through without the token, whatever route it is for."""

    def __init__(self, app: ASGIApp, token: SecretStr) -> None:
        self._app = app
        self._token = token.get_secret_value().encode()
        # the cookie can be stolen without the token being known, and it dies with the token
        self._cookie = hmac.digest(self._token, b"holdfast cookie 1", hashlib.sha256).hex()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
            return
        answer = self._answer(Request(scope))
        if answer is None:
            await self._app(scope, receive, send)
        else:
            await answer(scope, receive, send)

    def _answer(self, request: Request) -> Response | None:
        """The answer to give instead of the route's, or None to go on."""
        path = request.url.path
        if (request.method, path) == OPEN:
            return None
        if request.method == "GET" and path == "/" and "token" in request.query_params:
            if self._is_token(request.query_params["token"]):
                return self._login()
            return self._refuse(request, "The token in this link is not the right one.")
        header = request.headers.get("authorization")
        if header is not None:
            scheme, _, given = header.partition(" ")
            if scheme.lower() == "bearer" and self._is_token(given.strip()):
                named = request.headers.get(CLIENT_HEADER, "")
                request.state.by = named if CLIENT.fullmatch(named) else "token"
                return None
            return self._refuse(request, "The token is not the right one.")
        cookie = request.cookies.get(COOKIE)
        if cookie is None:
            return self._refuse(request, "This needs a token.")
        if not hmac.compare_digest(cookie.encode(), self._cookie.encode()):
            return self._refuse(request, "The login is not valid any more.")
        if request.method not in SAFE_METHODS and not _same_origin(request.headers):
            return self._refuse(request, "A page of another origin may not use this login.")
        request.state.by = "page"
        return None

    def _is_token(self, given: str) -> bool:
        return hmac.compare_digest(given.encode("utf-8", "surrogateescape"), self._token)

    def _login(self) -> Response:
        answer = RedirectResponse("/", status_code=303)
        answer.set_cookie(
            COOKIE,
            self._cookie,
            max_age=COOKIE_SECONDS,
            httponly=True,
            samesite="strict",
            path="/",
        )
        return answer

    def _refuse(self, request: Request, why: str) -> Response:
        if request.url.path == "/" and "text/html" in request.headers.get("accept", ""):
            return HTMLResponse(PAGE, status_code=Unauthenticated.status)
        return error_response(Unauthenticated(why, hint=HINT))


def by(request: Request) -> str:
    """Who asks, for the record: the page, or what a program calls itself."""
    return str(request.state.by)


def _same_origin(headers: Headers) -> bool:
    """SameSite takes every port of a host for one site, so other local servers' pages get here."""
    origin = headers.get("origin")
    if origin is None:
        return headers.get("sec-fetch-site", "none") in ("none", "same-origin")
    return origin.partition("://")[2] == headers.get("host")
