"""What a caller may: by the role of the token, and with a cookie only from our own page."""

from __future__ import annotations

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from api.auth import Caller
from api.errors import error_response
from api.middleware import drain
from api.roles import RANK, SAFE_METHODS, matched
from contracts.errors import CrossOrigin, HoldfastError, NotFound, RoleTooSmall


class Allowed:
    """Refuses what the caller's role, or the page that asks, has no right to."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        refused = _refused(Request(scope)) if scope["type"] == "http" else None
        if refused is None:
            await self._app(scope, receive, send)
            return
        # whoever is still sending would see a reset instead of the reason
        await drain(receive)
        await error_response(refused)(scope, receive, send)


def _refused(request: Request) -> HoldfastError | None:
    """Why not, or None to go on."""
    caller: Caller | None = getattr(request.state, "caller", None)
    if caller is None:  # what is open to everybody
        return None
    if caller.by_cookie and request.method not in SAFE_METHODS and not same_origin(request.headers):
        return CrossOrigin(
            "A page of another origin may not use this login.",
            hint="Programs send `Authorization: Bearer <token>` instead of the cookie.",
        )
    found = matched(request.method, request.scope["path"])
    if found is None:
        # an admin hears it from the router itself; nobody else gets to what nobody thought of
        return None if caller.role == "admin" else _no_route()
    if RANK[caller.role] < RANK[found.rule.role]:
        return RoleTooSmall(
            f"The token {caller.name!r} has the role `{caller.role}`, and this needs"
            f" `{found.rule.role}`.",
            hint=f"Use a token with that role: holdfast token new NAME --role {found.rule.role}.",
            role=caller.role,
            needs=found.rule.role,
        )
    return None


def _no_route() -> NotFound:
    return NotFound("There is no such route.", hint="See /openapi.json.")


def same_origin(headers: Headers) -> bool:
    """Whether our own page asks: every browser says by one of the two headers where a page that
    writes is from. SameSite takes every port of a host for one site, so that other local servers'
    pages get here with the cookie."""
    origin, site = headers.get("origin"), headers.get("sec-fetch-site")
    if origin is None and site is None:
        return False
    if site is not None and site != "same-origin":
        return False
    return origin is None or _names(origin, headers.get("host", ""))


def _names(origin: str, host: str) -> bool:
    # not the scheme: what stands in front of us may speak TLS
    scheme, _, rest = origin.partition("://")
    return scheme in ("http", "https") and rest == host
