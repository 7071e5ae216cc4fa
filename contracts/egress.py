"""Which hosts a session may reach through the gateway: names in one spelling, and an allow-list."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Annotated, Literal

import idna
from pydantic import AfterValidator, Field

# off: nothing; allow: what is on the allow-list; open: any public address
Egress = Literal["off", "allow", "open"]

MAX_HOSTS = 100
_MAX_NAME = 253
_LABEL = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
# What inet_aton() takes for a number in its last place: the name is an address in disguise then.
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")


class BadHost(ValueError):
    """What was given is no name of a host; says why."""


def host_name(text: str) -> str:
    """A host's name as it is compared and looked up: lower case, in ASCII.

    Raises: BadHost, also for an address, which has a spelling of its own.
    """
    name = text.lower()
    if not name.isascii():
        try:
            name = idna.encode(name, uts46=True).decode("ascii").lower()
        except idna.IDNAError as error:
            raise BadHost(f"{text[:100]!r} is no name of a host: {error}") from None
    if not name or len(name) > _MAX_NAME:
        raise BadHost("a host's name has 1 to 253 characters")
    if name.endswith("."):
        raise BadHost(f"{text[:100]!r} ends with a dot")
    labels = name.split(".")
    if not all(_LABEL.fullmatch(label) for label in labels):
        raise BadHost(f"{text[:100]!r} is no name of a host")
    if _NUMBER.fullmatch(labels[-1]):
        raise BadHost(f"{text[:100]!r} ends in a number and so is no name")
    if len(labels) < 2 or labels[-1] == "localhost":
        raise BadHost(f"{text[:100]!r} is a name of this machine or its network")
    return name


def pattern(text: str) -> str:
    """An entry of an allow-list in its one spelling: `host`, `*.host` (what is below it), or
    `.host` (it, and what is below it).

    Raises: BadHost.
    """
    for prefix in ("*.", "."):
        if text.startswith(prefix):
            return prefix + host_name(text.removeprefix(prefix))
    return host_name(text)


# As a body has it: refused, or in its one spelling.
HostPattern = Annotated[str, Field(max_length=_MAX_NAME + 2), AfterValidator(pattern)]
HostPatterns = Annotated[list[HostPattern], Field(max_length=MAX_HOSTS)]


def permits(patterns: Iterable[str], host: str) -> bool:
    """Whether an entry covers the host; both are in their one spelling. Only whole labels count:
    `.pypi.org` covers neither evilpypi.org nor pypi.org.evil.com."""
    return any(
        host == entry or (entry.startswith(".") and host == entry[1:]) or _below(host, entry)
        for entry in patterns
    )


def _below(host: str, entry: str) -> bool:
    suffix = entry.removeprefix("*")
    return suffix.startswith(".") and host.endswith(suffix) and len(host) > len(suffix)
