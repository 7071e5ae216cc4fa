"""Ports of loopback that nobody else takes between the choice and the bind."""

from __future__ import annotations

import socket

from stack.embedded.ports import claim_port

# Bound for as long as the tests run: whoever connects is refused, and nobody else gets the port.
_closed: list[socket.socket] = []


def free_port(also: int = 0) -> int:
    """A free loopback port; with `also`, one whose port + `also` is free as well."""
    return claim_port(also)


def closed_port() -> int:
    """A port where nobody listens, and nobody will."""
    holder = socket.socket()
    holder.bind(("127.0.0.1", 0))
    _closed.append(holder)
    port: int = holder.getsockname()[1]
    return port
