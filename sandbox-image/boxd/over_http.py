"""boxd in a cloud's box: one HTTP port, reached through the provider's own proxy.

`POST /call`, with a request as the unix socket takes it as its body; the answer has the same
shape, behind empty lines that keep a proxy from losing patience. A request that says
`X-Holdfast-To: agent` is sandbox-agent's and is passed on as it is. Both need boxd's token: a
provider's URL may be known to others. Who hangs up takes the command with it.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import json
import socket
from collections.abc import Mapping

import ports
from freezing import Holder
from work import Work

LONGEST_HEAD = 64 * 1024
MOST_BYTES = 1 << 30
BEAT_SECONDS = 10
HEAD_SECONDS = 30
TOKEN_HEADER = "x-holdfast-token"  # noqa: S105 - a header's name
TARGET_HEADER = "x-holdfast-to"
# Meant for the next hop alone, or for boxd.
NOT_PASSED_ON = {"connection", "keep-alive", "transfer-encoding", TOKEN_HEADER, TARGET_HEADER}

Reader = asyncio.StreamReader
Writer = asyncio.StreamWriter


class BadRequest(Exception):
    """Told to the caller, and the connection is closed."""


class Head:
    """The first lines of a request."""

    def __init__(self, raw: bytes) -> None:
        first, *lines = raw.decode("latin-1").split("\r\n")
        self.fields = [
            (name, value.strip()) for name, _, value in (x.partition(":") for x in lines)
        ]
        try:
            self.method, self.target, _ = first.split(" ")
        except ValueError:
            raise BadRequest("not HTTP") from None

    @property
    def headers(self) -> Mapping[str, str]:
        return {name.lower(): value for name, value in self.fields}


class Door:
    def __init__(self, work: Work, token: str) -> None:
        self._work = work
        self._token = token.encode()

    async def open(self, listener: socket.socket) -> None:
        await asyncio.start_server(self._serve, sock=listener, limit=LONGEST_HEAD)

    async def _serve(self, reader: Reader, writer: Writer) -> None:
        try:
            async with asyncio.timeout(HEAD_SECONDS):
                head = Head((await reader.readuntil(b"\r\n\r\n")).removesuffix(b"\r\n\r\n"))
            if not hmac.compare_digest(head.headers.get(TOKEN_HEADER, "").encode(), self._token):
                await _say(writer, "401 Unauthorized")
            elif head.headers.get(TARGET_HEADER) == "agent":
                await _pass_on(head, reader, writer)
            elif (head.method, head.target) == ("POST", "/call"):
                await self._call(await _body(head, reader), reader, writer)
            else:
                await _say(writer, "404 Not Found")
        except (BadRequest, ValueError):
            with contextlib.suppress(OSError):
                await _say(writer, "400 Bad Request")
        except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass
        finally:
            writer.close()

    async def _call(self, body: bytes, reader: Reader, writer: Writer) -> None:
        line, _, data = body.partition(b"\n")
        request = json.loads(line)
        if not isinstance(request, dict) or request.get("op") == "freeze":
            raise BadRequest("not a request")  # a freeze by connection could end with any proxy's
        writer.write(
            b"HTTP/1.1 200 OK\r\nContent-Type: application/octet-stream\r\n"
            b"Transfer-Encoding: chunked\r\nConnection: close\r\n\r\n"
        )
        work = asyncio.ensure_future(self._work.answer(request, data, Holder()))
        left = asyncio.ensure_future(reader.read(1))
        try:
            while not work.done() and not left.done():
                await asyncio.wait(
                    {work, left}, timeout=BEAT_SECONDS, return_when=asyncio.FIRST_COMPLETED
                )
                if not work.done():
                    _chunk(writer, b"\n")
                    await writer.drain()
            if work.done():
                head, data = work.result()
                _chunk(writer, json.dumps({**head, "size": len(data)}).encode() + b"\n")
                for start in range(0, len(data), ports.CHUNK):
                    _chunk(writer, data[start : start + ports.CHUNK])
                    await writer.drain()
                _chunk(writer, b"")
                await writer.drain()
        finally:
            left.cancel()
            work.cancel()
            await asyncio.wait({work})


async def _pass_on(head: Head, reader: Reader, writer: Writer) -> None:
    """To sandbox-agent, one request per connection; its answer streams back for as long as both
    ends stay."""
    body = await _body(head, reader)
    try:
        far_reader, far_writer = await ports.to_agent()
    except OSError:
        await _say(writer, "502 Bad Gateway")
        return
    lines = [f"{head.method} {head.target} HTTP/1.1"]
    lines += [
        f"{name}: {value}" for name, value in head.fields if name.lower() not in NOT_PASSED_ON
    ]
    if "content-length" not in head.headers and body:
        lines.append(f"Content-Length: {len(body)}")
    lines += ["Connection: close", "", ""]
    far_writer.write("\r\n".join(lines).encode("latin-1") + body)
    answer = asyncio.ensure_future(ports.pump(far_reader, writer))
    left = asyncio.ensure_future(reader.read(1))
    try:
        await asyncio.wait({answer, left}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in (answer, left):
            task.cancel()
        far_writer.close()


async def _body(head: Head, reader: Reader) -> bytes:
    if "chunked" in head.headers.get("transfer-encoding", "").lower():
        return await _chunked(reader)
    size = int(head.headers.get("content-length", 0))
    if not 0 <= size <= MOST_BYTES:
        raise BadRequest("too large")
    return await reader.readexactly(size)


async def _chunked(reader: Reader) -> bytes:
    """Some proxies do not pass a length on."""
    body = bytearray()
    while size := int((await reader.readuntil(b"\r\n")).split(b";")[0], 16):
        if len(body) + size > MOST_BYTES:
            raise BadRequest("too large")
        body += await reader.readexactly(size)
        await reader.readexactly(2)
    while await reader.readuntil(b"\r\n") != b"\r\n":
        pass
    return bytes(body)


def _chunk(writer: Writer, data: bytes) -> None:
    writer.write(b"%x\r\n%s\r\n" % (len(data), data))


async def _say(writer: Writer, status: str) -> None:
    writer.write(f"HTTP/1.1 {status}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".encode())
    await writer.drain()
