"""What the sidecar asks, and how it is told no."""

from __future__ import annotations

from typing import Any

Request = dict[str, Any]
Answer = tuple[dict[str, Any], bytes]


class Refused(Exception):
    """What the sidecar is told. `kind` is `missing`, `large`, or nothing."""

    def __init__(self, message: str, kind: str = "") -> None:
        super().__init__(message)
        self.kind = kind
