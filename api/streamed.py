"""Bytes of a workspace file on their way to a client that must not trust them."""

from __future__ import annotations

import mimetypes
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack
from urllib.parse import quote

from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send


class OwnedStream(StreamingResponse):
    """A stream that closes what it reads from, also when the client never read a byte."""

    def __init__(
        self,
        content: AsyncIterator[bytes],
        owned: AsyncExitStack,
        *,
        status_code: int = 200,
        headers: Mapping[str, str] | None = None,
        media_type: str | None = None,
    ) -> None:
        super().__init__(content, status_code, headers, media_type)
        self._owned = owned

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with self._owned:
            await super().__call__(scope, receive, send)


def file_headers(path: str, *, download: bool) -> dict[str, str]:
    """An agent wrote the file: it is shown as what its name says, and can do nothing."""
    headers = {
        "Content-Type": _content_type(path),
        "Content-Security-Policy": "sandbox",
        "X-Content-Type-Options": "nosniff",
        "Cache-Control": "private, no-cache",
    }
    if download:
        name = path.rsplit("/", 1)[-1]
        plain = "".join(
            c if c.isascii() and c.isprintable() and c not in '"%' else "_" for c in name
        )
        headers["Content-Disposition"] = (
            f"attachment; filename=\"{plain}\"; filename*=UTF-8''{quote(name, safe='')}"
        )
    return headers


def _content_type(path: str) -> str:
    kind, encoding = mimetypes.guess_type(f"/{path}")
    if encoding is not None:
        return f"application/{encoding}"
    if kind is None:
        return "application/octet-stream"
    return f"{kind}; charset=utf-8" if kind.startswith("text/") else kind
