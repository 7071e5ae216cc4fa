"""What a connection on a session's socket is for, told by its first bytes.

ASGI has no CONNECT, so the proxy stands beside uvicorn and not behind it. A connection is the one's
or the other's from its first request on, and stays so.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

# Longer than any method that is used; a first word that is longer is for uvicorn to refuse.
_MAX_METHOD = 32
_SCHEMES = (b"http://", b"https://")
# A sandbox may open as many as it likes, and descriptors are everyone's.
MAX_CONNECTIONS = 256
# Clients connect ahead of their first request; none as long ahead as this.
FIRST_SECONDS = 120.0

Made = Callable[[], asyncio.Protocol]


def is_for_proxy(first: bytes) -> bool | None:
    """Whether these first bytes are a proxy's; None while that cannot be told."""
    method, space, target = first.partition(b" ")
    if not space:
        return None if len(method) <= _MAX_METHOD and method.isalpha() else False
    if method == b"CONNECT":
        return True
    begun = target[: len(_SCHEMES[-1])].lower()
    if any(begun.startswith(scheme) for scheme in _SCHEMES):
        return True
    return None if any(scheme.startswith(begun) for scheme in _SCHEMES) else False


class Front:
    """All connections of one session."""

    def __init__(self, http: Made, proxy: Made) -> None:
        self._http = http
        self._proxy = proxy
        self._transports: set[asyncio.Transport] = set()

    def protocol(self) -> asyncio.Protocol:
        """For one connection."""
        return _Undecided(self)

    def admit(self, transport: asyncio.Transport) -> bool:
        """False when the session has too many connections already."""
        self._transports = {each for each in self._transports if not each.is_closing()}
        if len(self._transports) >= MAX_CONNECTIONS:
            return False
        self._transports.add(transport)
        return True

    def next_protocol(self, first: bytes) -> asyncio.Protocol | None:
        """Who goes on with the connection; None while that cannot be told."""
        for_proxy = is_for_proxy(first)
        if for_proxy is None:
            return None
        return self._proxy() if for_proxy else self._http()

    def abort(self) -> None:
        """End every connection at once."""
        for transport in self._transports:
            transport.abort()


class _Undecided(asyncio.Protocol):
    """A connection of which too little is known yet."""

    def __init__(self, front: Front) -> None:
        self._front = front
        self._first = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._deadline = asyncio.get_running_loop().call_later(FIRST_SECONDS, transport.abort)
        if not self._front.admit(transport):
            transport.abort()

    def data_received(self, data: bytes) -> None:
        self._first += data
        protocol = self._front.next_protocol(self._first)
        if protocol is None:
            return
        self._deadline.cancel()
        self._transport.set_protocol(protocol)
        protocol.connection_made(self._transport)
        protocol.data_received(self._first)

    def connection_lost(self, exc: Exception | None) -> None:
        self._deadline.cancel()
