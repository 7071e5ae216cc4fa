"""The way in: which sandbox and which port a request is for, and whether it may pass.

By the headers `E2b-Sandbox-Id` and `E2b-Sandbox-Port` where the host is an address or `sandbox.…`,
else by a host like `2469-<id>.<domain>`.
"""

from __future__ import annotations

import asyncio
import functools
import hmac
import ipaddress
import re
from typing import Any

from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from emulators.boxes import BoxNotRunning
from emulators.e2b import envd
from emulators.e2b.sandboxes import NoSuchSandbox, Sandbox, Sandboxes, State
from emulators.http_server import reset_connection
from emulators.port_proxy import NoAnswer, forward

TRAFFIC_TOKEN = "e2b-traffic-access-token"  # noqa: S105 - a header's name
BY_HOST = re.compile(r"(\d+)-([a-z0-9]+)\.")


def target(scope: Scope) -> tuple[str, str] | None:
    """The sandbox and its port; None for a request that is not for a sandbox."""
    headers = Headers(scope=scope)
    host = headers.get("host", "")
    if _shared(host):
        sandbox, port = headers.get("e2b-sandbox-id", ""), headers.get("e2b-sandbox-port", "")
        return (sandbox, port) if sandbox or port else None
    found = BY_HOST.match(host)
    return (found[2], found[1]) if found else None


def _shared(host: str) -> bool:
    """A host that cannot name a sandbox itself."""
    name = host.rpartition(":")[0] or host
    try:
        ipaddress.ip_address(name.strip("[]"))
    except ValueError:
        return name == "localhost" or name.startswith("sandbox.")
    return True


class Edge:
    """Requests for sandboxes; the other ones go to `api`."""

    def __init__(self, sandboxes: Sandboxes, api: ASGIApp) -> None:
        self._sandboxes = sandboxes
        self._api = api

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        found = target(scope)
        if found is None:
            await self._api(scope, receive, send)
            return
        try:
            sandbox, port = await self._let_in(scope, *found)
        except _Stopped as stopped:
            answer = JSONResponse(stopped.body, stopped.body["code"])
            await answer(scope, receive, send)
            return
        if port == envd.PORT:
            app: ASGIApp = sandbox.envd
        else:
            app = functools.partial(_into, sandbox, port)
        await _while_it_runs(sandbox, app, scope, receive, send)

    async def _let_in(self, scope: Scope, sandbox_id: str, port: str) -> tuple[Sandbox, int]:
        """Raises: _Stopped."""
        if not port.isdigit() or not 0 < int(port) < 1 << 16:
            raise _Stopped(sandbox_id, 400, "Invalid sandbox port")
        headers = Headers(scope=scope)
        try:
            sandbox = self._sandboxes.find(sandbox_id)
            if sandbox.state is State.PAUSED:
                _check_waker(sandbox, int(port), headers)
                await self._sandboxes.wake(sandbox_id)
        except NoSuchSandbox:
            raise _Stopped(sandbox_id, 502, "The sandbox was not found") from None
        if int(port) != envd.PORT:
            _check_token(sandbox, headers)
        return sandbox, int(port)


class _Stopped(Exception):
    """A request that does not reach its sandbox."""

    def __init__(self, sandbox_id: str, code: int, message: str, **more: Any) -> None:
        super().__init__(message)
        self.body = {"sandboxId": sandbox_id, "message": message, "code": code, **more}


def _check_waker(sandbox: Sandbox, port: int, headers: Headers) -> None:
    """Raises: _Stopped, for who may not talk to it anyway."""
    if port == envd.PORT:
        known = sandbox.envd.knows(headers.get("x-access-token", ""))
    else:
        token = sandbox.traffic_token
        known = token is None or _same(headers.get(TRAFFIC_TOKEN, ""), token)
    if sandbox.wish.wakes and not known:
        raise _Stopped(
            sandbox.id,
            403,
            "This sandbox can't be resumed with the credentials provided. Check your access token "
            "and try again.",
        )


def _check_token(sandbox: Sandbox, headers: Headers) -> None:
    """Raises: _Stopped."""
    if sandbox.traffic_token is None:
        return
    secured = "Sandbox is secured with traffic access token. "
    given = headers.get(TRAFFIC_TOKEN, "")
    if not given:
        message = f"{secured}Token header '{TRAFFIC_TOKEN}' is missing"
        raise _Stopped(sandbox.id, 403, message)
    if not _same(given, sandbox.traffic_token):
        message = f"{secured}Provided token in header '{TRAFFIC_TOKEN}' is invalid"
        raise _Stopped(sandbox.id, 403, message)


def _same(one: str, other: str) -> bool:
    return hmac.compare_digest(one.encode(), other.encode())


async def _into(sandbox: Sandbox, port: int, scope: Scope, receive: Receive, send: Send) -> None:
    try:
        # The token goes in with it, as it does there: who lives in the box may see it.
        await forward(scope, receive, send, lambda: sandbox.box.connect(port))
    except (ConnectionRefusedError, NoAnswer, BoxNotRunning):
        message = "The sandbox is running but port is not open"
        body = {"sandboxId": sandbox.id, "message": message, "port": port, "code": 502}
        await JSONResponse(body, 502)(scope, receive, send)


async def _while_it_runs(
    sandbox: Sandbox, app: ASGIApp, scope: Scope, receive: Receive, send: Send
) -> None:
    """When the sandbox stops running, its connections are cut, as they are there."""
    cut = sandbox.cut

    async def told(message: Message) -> None:
        if not cut.is_set():  # a service that is given up would still end its answer properly
            await send(message)

    work = asyncio.ensure_future(app(scope, receive, told))
    stopped = asyncio.ensure_future(cut.wait())
    try:
        await asyncio.wait({work, stopped}, return_when=asyncio.FIRST_COMPLETED)
        if not cut.is_set():
            await work
            return
    finally:
        for task in (work, stopped):
            task.cancel()
        await asyncio.gather(work, stopped, return_exceptions=True)
    await reset_connection(scope, receive)
