"""Which names the api answers to: a page of a foreign name that resolves to us is not ours."""

from __future__ import annotations

import ipaddress
import re

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from api.errors import error_response
from contracts.errors import HostNotAllowed

# A name or IPv4 address, or an IPv6 address in brackets; then a port.
HOST = re.compile(r"([A-Za-z0-9._-]{1,253}|\[[0-9A-Fa-f:.]{2,45}\])(?::(\d{1,5}))?")
ANYWHERE = frozenset({"0.0.0.0", "::"})  # noqa: S104 - compared, not bound


class Hosts:
    """Refuses a request whose Host is not one of ours, before anything else is looked at.

    Ours are the names of loopback, the address that the api was told to bind to, and `more`:
    names, each with a port or for all ports. The port of a loopback name is not looked at: it is
    another one behind a mapping or an ssh tunnel, and a foreign page cannot have such a name.
    """

    def __init__(self, app: ASGIApp, bound: str, more: str) -> None:
        self._app = app
        given = [name.strip() for name in more.split(",")]
        own = [] if bound in ANYWHERE else [f"[{bound}]" if ":" in bound else bound]
        self._known = frozenset(name.lower() for name in (*own, *given) if name)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        hosts = Headers(scope=scope).getlist("host")
        if len(hosts) == 1 and self.allows(hosts[0]):
            await self._app(scope, receive, send)
            return
        told = f"the host {hosts[0][:100]!r}" if len(hosts) == 1 else "a request without one host"
        refused = HostNotAllowed(
            f"This api does not answer to {told}.",
            hint="Use the address that `holdfast up` printed; where the api is reached by another"
            " name, put that into HOLDFAST_ALLOWED_HOSTS.",
        )
        await error_response(refused)(scope, receive, send)

    def allows(self, host: str) -> bool:
        """Whether this api answers to a request for that host."""
        found = HOST.fullmatch(host)
        if found is None:
            return False
        name = found[1].lower()
        return _is_loopback(name) or not self._known.isdisjoint({name, host.lower()})


def _is_loopback(name: str) -> bool:
    if name == "localhost":
        return True
    try:
        return ipaddress.ip_address(name.strip("[]")).is_loopback
    except ValueError:
        return False


def not_hosts(more: str) -> list[str]:
    """What in such a list is no host."""
    names = (name.strip() for name in more.split(","))
    return [name for name in names if name and HOST.fullmatch(name) is None]
