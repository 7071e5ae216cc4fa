"""Opaque cursors: where the next page of a list begins."""

from __future__ import annotations

import base64
import binascii
import json
from typing import Any

from contracts.errors import InvalidInput


def encode(*position: str | int) -> str:
    """A cursor that a client passes back as it is."""
    plain = json.dumps(position, separators=(",", ":")).encode()
    return base64.urlsafe_b64encode(plain).decode().rstrip("=")


def decode(cursor: str, *kinds: type) -> list[Any]:
    """The position in a cursor, one value for each of `kinds`.

    Raises: InvalidInput.
    """
    try:
        padded = cursor.encode("ascii") + b"=" * (-len(cursor) % 4)
        position = json.loads(base64.b64decode(padded, altchars=b"-_", validate=True))
    except (ValueError, binascii.Error, RecursionError):
        raise refused() from None
    if not isinstance(position, list) or [type(value) for value in position] != list(kinds):
        raise refused()
    return position


def refused() -> InvalidInput:
    return InvalidInput(
        "The cursor is not one of this list's.",
        hint="Pass `next_cursor` of the last page as it is, or leave the cursor out.",
    )
