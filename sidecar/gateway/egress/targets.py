"""What a client of the proxy asks for, read strictly: whatever has two readings is refused."""

from __future__ import annotations

import re
from dataclasses import dataclass
from ipaddress import AddressValueError, IPv4Address, IPv6Address

from contracts.egress import BadHost, host_name
from sidecar.gateway.egress.addresses import Address

_PORT = re.compile(r"[1-9][0-9]{0,4}")
_DOTTED = re.compile(r"[0-9]+(\.[0-9]+){3}")
_HTTP = "http://"
_HTTP_PORT = 80


class Refused(Exception):
    """Why a request is not carried out; `reason` is short, as clients show nothing else."""

    def __init__(self, status: int, code: str, reason: str, hint: str = "") -> None:
        super().__init__(reason)
        self.status = status
        self.code = code
        self.reason = reason
        self.hint = hint


@dataclass(frozen=True)
class Target:
    """A host, by its name or its address, and a port."""

    host: str
    port: int
    address: Address | None = None

    @property
    def authority(self) -> str:
        host = f"[{self.host}]" if isinstance(self.address, IPv6Address) else self.host
        return host if self.port == _HTTP_PORT else f"{host}:{self.port}"


def tunnel_target(text: str) -> Target:
    """Where `CONNECT host:port` leads. Raises: Refused."""
    host, port = _split(text)
    if port is None:
        raise _malformed("CONNECT needs host:port")
    return _target(host, port)


def absolute_target(text: str) -> tuple[Target, str]:
    """Where a request for `http://host[:port]/path` leads, and what is asked for there.

    Raises: Refused.
    """
    if text[: len(_HTTP)].lower() != _HTTP:
        raise _malformed("only http:// URLs are taken like this; https needs CONNECT")
    rest = text[len(_HTTP) :]
    end = next((place for place, char in enumerate(rest) if char in "/?#\\"), len(rest))
    authority, path = rest[:end], rest[end:]
    if "#" in path or "\\" in path:
        raise _malformed("a request has no fragment and no backslash")
    host, port = _split(authority)
    target = _target(host, str(_HTTP_PORT) if port is None else port)
    return target, path if path.startswith("/") else f"/{path}"


def _split(authority: str) -> tuple[str, str | None]:
    if "@" in authority:
        raise _malformed("a user and a password have no place in an address")
    if authority.startswith("["):
        host, bracket, rest = authority.partition("]")
        if not bracket or (rest and not rest.startswith(":")):
            raise _malformed("an IPv6 address stands in brackets")
        return host + bracket, rest[1:] if rest else None
    host, colon, port = authority.partition(":")
    return host, port if colon else None


def _target(host: str, port: str) -> Target:
    if not _PORT.fullmatch(port) or int(port) > 0xFFFF:
        raise _malformed("the port is not a number from 1 to 65535")
    try:
        if host.startswith("["):
            address = IPv6Address(host[1:-1])
            return Target(str(address), int(port), address)
        if _DOTTED.fullmatch(host):
            # strict: what other programs would read as octal is an error
            four = IPv4Address(host)
            return Target(str(four), int(port), four)
        return Target(host_name(host), int(port))
    except (AddressValueError, BadHost) as error:
        raise _malformed(str(error)) from None


def _malformed(why: str) -> Refused:
    return Refused(400, "bad_target", why, "Ask for a host by its full name, or by its address.")
