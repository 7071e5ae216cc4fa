"""Previews: the ports of sandboxes, by HTTP. The real ones are hosts, `<port>-<sandbox or signed
token>.<proxy>`; these are paths, as no such names resolve here.

Who is not let in gets 401. For what the proxy does not know at all (a sandbox that is deleted, a
signed token that is over) it is a redirect to the login page, which is fine with 200.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from urllib.parse import parse_qsl, urlencode

from starlette.datastructures import Headers
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from emulators.boxes import BoxNotRunning
from emulators.daytona.clock import Clock
from emulators.daytona.sandboxes import Sandbox, Sandboxes
from emulators.daytona.wire import PROXY, Refused, bearer
from emulators.port_proxy import NoAnswer, forward

PREFIX = "/preview/"
TOKEN_HEADER = "x-daytona-preview-token"  # noqa: S105 - a header's name
TOKEN_QUERY = "DAYTONA_SANDBOX_AUTH_KEY"  # noqa: S105 - a parameter's name


@dataclass(frozen=True)
class Signed:
    sandbox_id: str
    port: int
    until: float


class Previews:
    """An ASGI app, for everything below PREFIX."""

    def __init__(self, sandboxes: Sandboxes, clock: Clock, key: str) -> None:
        self._sandboxes = sandboxes
        self._clock = clock
        self._key = key
        self._signed: dict[str, Signed] = {}
        self.base_url = ""

    def url(self, port: int, sandbox_or_token: str) -> str:
        return f"{self.base_url}{PREFIX}{port}-{sandbox_or_token}"

    def sign(self, sandbox_id: str, port: int, seconds: float) -> str:
        token = secrets.token_hex(8)
        self._signed[token] = Signed(sandbox_id, port, self._clock.now() + seconds)
        return token

    def unsign(self, token: str) -> None:
        self._signed.pop(token, None)

    def routes(self) -> list[Route]:
        return [Route("/login", _login, methods=["GET", "POST", "PUT", "DELETE"])]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        host = scope["path"].removeprefix(PREFIX).partition("/")[0]
        port, _, name = host.partition("-")
        try:
            sandbox = self._opened(name, int(port) if port.isdigit() else 0, scope)
            if sandbox is None:
                login = RedirectResponse(f"{self.base_url}/login", 307)
                await login(scope, receive, send)
                return
            await self._carry(sandbox, int(port), _target(scope), scope, receive, send)
        except Refused as refused:
            await JSONResponse(refused.body(), refused.status)(scope, receive, send)

    def _opened(self, name: str, port: int, scope: Scope) -> Sandbox | None:
        """The sandbox, for who may see it; None where the proxy knows none. Raises: Refused 401."""
        signed = self._signed.get(name)
        if signed is not None and signed.port == port and signed.until > self._clock.now():
            return self._sandboxes.named(signed.sandbox_id)
        sandbox = self._sandboxes.named(name)
        if sandbox is None:
            return None
        headers = Headers(scope=scope)
        query = dict(parse_qsl(scope["query_string"].decode()))
        tokens = (headers.get(TOKEN_HEADER), query.get(TOKEN_QUERY))
        if sandbox.public or sandbox.token in tokens or self._is_owner(headers):
            return sandbox
        raise Refused(401, "authentication failed: no valid token", source=PROXY)

    def _is_owner(self, headers: Headers) -> bool:
        return bearer(headers.get("authorization")) == self._key

    async def _carry(
        self, sandbox: Sandbox, port: int, target: bytes, scope: Scope, receive: Receive, send: Send
    ) -> None:
        daemon = sandbox.daemon
        if sandbox.state != "started" or daemon is None:
            raise not_started()
        dropped = [TOKEN_HEADER.encode()]
        if self._is_owner(Headers(scope=scope)):
            dropped.append(b"authorization")
        try:
            await forward(
                scope,
                receive,
                send,
                lambda: daemon.connect(port),
                target=target,
                dropped=dropped,
            )
        except BoxNotRunning as error:
            raise not_started() from error
        except (ConnectionError, NoAnswer) as error:
            raise Refused(502, f"no answer from port {port}: {error}", source=PROXY) from error


def _target(scope: Scope) -> bytes:
    """What the sandbox gets to see of the URL: the path behind the host, as it was encoded, and the
    query without the token."""
    path: bytes = scope["raw_path"].partition(b"?")[0].removeprefix(PREFIX.encode())
    query: bytes = scope["query_string"]
    if TOKEN_QUERY.encode() in query:
        kept = parse_qsl(query.decode(), keep_blank_values=True)
        query = urlencode([each for each in kept if each[0] != TOKEN_QUERY]).encode()
    return b"/" + path.partition(b"/")[2] + (b"?" + query if query else b"")


def not_started() -> Refused:
    return Refused(400, "no IP address found. Is the Sandbox started?", source=PROXY)


async def _login(request: object) -> HTMLResponse:
    return HTMLResponse("<title>Log in</title>")
