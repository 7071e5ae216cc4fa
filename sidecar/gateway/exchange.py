"""One HTTP exchange on a session's socket, straight on ASGI.

No framework: all that is needed is a body, a streamed answer, and that a client who hangs up ends
the work at once, also before there is a first byte to answer with.
"""

from __future__ import annotations

import asyncio
import json
import zlib
from collections.abc import AsyncIterator, Coroutine, Iterable
from typing import Any

from starlette.datastructures import Headers
from starlette.types import Receive, Scope, Send

# Above what either vendor takes in one request, so that the limit a user meets is the vendor's.
MAX_BODY = 64 * 1024 * 1024
# What the log shows for a client that hung up; HTTP has no number for it, servers use this one.
HUNG_UP = 499

# gzip or zlib, told apart by their header
_ZLIB_WINDOW = 32 + zlib.MAX_WBITS


class HungUp(Exception):
    """The client went away."""


class BadBody(Exception):
    """A body that cannot be read; `status` says in what way."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message


class Exchange:
    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.method: str = scope["method"]
        self.path: str = scope["path"]
        self.query: str = scope["query_string"].decode("latin-1")
        self.headers = Headers(scope=scope)
        self.model = "-"
        self.status = HUNG_UP  # until an answer is complete
        self._receive = receive
        self._send = send

    async def body(self) -> bytes:
        """Raises: HungUp, BadBody."""
        chunks: list[bytes] = []
        size = 0
        while True:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise HungUp
            chunks.append(message.get("body", b""))
            size += len(chunks[-1])
            if size > MAX_BODY:
                raise BadBody(413, f"The request is larger than {MAX_BODY} bytes.")
            if not message.get("more_body"):
                return b"".join(chunks)

    async def until_hangup(self, work: Coroutine[Any, Any, None]) -> None:
        """Run `work`, or as much of it as the client stays for."""
        async with asyncio.TaskGroup() as group:
            watcher = group.create_task(self._hangup())
            worker = group.create_task(work)
            worker.add_done_callback(lambda _: watcher.cancel())
            watcher.add_done_callback(lambda _: worker.cancel())

    async def answer(self, status: int, body: dict[str, Any] | None = None) -> None:
        data = b"" if body is None else json.dumps(body).encode()
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(data)).encode()),
        ]
        if status == 413:
            headers.append((b"connection", b"close"))  # the rest of the body is not read
        await self._start(status, headers)
        await self._end(status, b"" if self.method == "HEAD" else data)

    async def stream(
        self, status: int, headers: Iterable[tuple[bytes, bytes]], chunks: AsyncIterator[bytes]
    ) -> None:
        await self._start(status, headers)
        async for chunk in chunks:
            await self._send({"type": "http.response.body", "body": chunk, "more_body": True})
        await self._end(status)

    async def _start(self, status: int, headers: Iterable[tuple[bytes, bytes]]) -> None:
        await self._send(
            {"type": "http.response.start", "status": status, "headers": list(headers)}
        )

    async def _end(self, status: int, data: bytes = b"") -> None:
        self.status = status  # before the last byte: then the watcher wakes and ends the worker
        await self._send({"type": "http.response.body", "body": data, "more_body": False})

    async def _hangup(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass


def decoded(raw: bytes, encoding: str) -> bytes:
    """A body without its content encoding.

    Raises: BadBody.
    """
    if encoding in ("", "identity"):
        return raw
    if encoding not in ("gzip", "x-gzip", "deflate"):
        raise BadBody(415, f"The scripted model does not read the content encoding {encoding!r}.")
    inflate = zlib.decompressobj(_ZLIB_WINDOW)
    try:
        data = inflate.decompress(raw, MAX_BODY)
    except zlib.error as error:
        raise BadBody(400, f"The body is not {encoding}: {error}.") from error
    if not inflate.eof:
        raise BadBody(413, f"The body is cut off or larger than {MAX_BODY} bytes.")
    return data


def parsed(data: bytes) -> dict[str, Any]:
    """The JSON object in a body.

    Raises: BadBody.
    """
    try:
        value = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise BadBody(400, "The body is not valid JSON.") from error
    if not isinstance(value, dict):
        raise BadBody(400, "The body is not a JSON object.")
    return value
