"""Who a request of envd is for, and what its paths mean."""

from __future__ import annotations

import base64
import binascii
import posixpath
from collections.abc import Mapping

from connectrpc.code import Code
from connectrpc.errors import ConnectError

from emulators.boxes import HOMES, User

# The user of the image that boxes are made of; a template of E2B's own has `user`.
DEFAULT_USER: User = "agent"


class UnknownUser(Exception):
    """There is no such user in the box."""


class BadPath(Exception):
    """A `~` of somebody else."""


def named(name: str | None) -> User:
    """The user of this name; nobody named means the template's. Raises: UnknownUser."""
    if not name:
        return DEFAULT_USER
    for user in HOMES:
        if user == name:
            return user
    raise UnknownUser(f"invalid username: '{name}'")


def user_of(headers: Mapping[str, str]) -> User:
    """The user of an RPC: it says so by basic authentication, without a password.

    Raises: ConnectError.
    """
    given = headers.get("authorization", "")
    if not given.startswith("Basic "):
        return named(None)
    try:
        name = base64.b64decode(given[6:], validate=True).decode().partition(":")[0]
        return named(name)
    except (binascii.Error, UnicodeDecodeError, UnknownUser) as error:
        raise ConnectError(Code.UNAUTHENTICATED, str(error)) from error


def resolved(path: str, user: User) -> str:
    """A path as envd takes it: relative to the user's home. Raises: BadPath."""
    home = HOMES[user]
    if path == "~" or path.startswith("~/"):
        path = home + path[1:]
    elif path.startswith("~"):
        raise BadPath("cannot expand user-specific home dir")
    return path if path.startswith("/") else posixpath.normpath(posixpath.join(home, path))
