"""Daytona's JSON: errors, and a sandbox and a snapshot as the API shows them."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from http import HTTPStatus
from typing import Any

API = "DAYTONA_API"
PROXY = "DAYTONA_PROXY"
DAEMON = "DAYTONA_DAEMON"
ORGANIZATION = "00000000-0000-4000-8000-000000000001"


class Refused(Exception):
    """An answer with an error status. `code` and `source` choose the SDK's exception class."""

    def __init__(self, status: int, message: str, *, code: str = "", source: str = API) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.code = code or HTTPStatus(status).name
        self.source = source

    def body(self) -> dict[str, Any]:
        return {
            "statusCode": self.status,
            "error": HTTPStatus(self.status).phrase,
            "message": self.message,
            "code": self.code,
            "source": self.source,
            "timestamp": instant(datetime.now(UTC).timestamp()),
        }


def refusal(status: int) -> Mapping[str, Any]:
    """The body of an injected fault."""
    return Refused(status, HTTPStatus(status).phrase).body()


def instant(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")


def bearer(authorization: str | None) -> str:
    kind, _, key = (authorization or "").partition(" ")
    return key.strip() if kind == "Bearer" else ""
