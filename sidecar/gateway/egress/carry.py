"""Carrying bytes between a sandbox and a host: a tunnel, or one plain request."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import h11

from sidecar.gateway.egress.targets import Refused, Target
from sidecar.gateway.egress.wire import CHUNK, Count, Wire, end_to_end

_ESTABLISHED = b"HTTP/1.1 200 Connection established\r\n\r\n"
METHODS = frozenset({b"GET", b"HEAD", b"POST", b"PUT", b"PATCH", b"DELETE", b"OPTIONS"})

Moved = Callable[[], None]


class WentAway(ConnectionError):
    """The client has closed its connection."""


async def tunnel(here: Wire, there: Wire, up: Count, down: Count, moved: Moved) -> None:
    """Both ways until both have ended; each waits for its reader.

    Raises: ConnectionError.
    """
    early, _ = here.http.trailing_data  # a client need not wait for our answer
    here.writer.write(_ESTABLISHED)
    await here.writer.drain()
    if early:
        up(len(early))
        there.writer.write(early)
        await there.writer.drain()
    try:
        async with asyncio.TaskGroup() as both:
            both.create_task(_pump(here.reader, there.writer, up, moved))
            both.create_task(_pump(there.reader, here.writer, down, moved))
    except ExceptionGroup as group:
        raise group.exceptions[0] from None


async def _pump(
    source: asyncio.StreamReader, sink: asyncio.StreamWriter, count: Count, moved: Moved
) -> None:
    while data := await source.read(CHUNK):
        count(len(data))
        sink.write(data)
        await sink.drain()
        moved()
    if sink.can_write_eof():
        sink.write_eof()


def outgoing(request: h11.Request, target: Target, path: str) -> h11.Request:
    """The request as the host gets it: one, of known length, without what was meant for us.

    Raises: Refused.
    """
    names = [name for name, _ in request.headers]
    framed = names.count(b"transfer-encoding"), names.count(b"content-length")
    if all(framed) or max(framed) > 1 or (framed[0] and request.http_version != b"1.1"):
        raise Refused(400, "bad_framing", "the length of the request is said in more than one way")
    if request.method not in METHODS:
        raise Refused(405, "bad_method", "the method is none of those that are passed on")
    kept = end_to_end(request.headers, without=frozenset({b"host"}))
    headers = [(b"host", target.authority.encode()), *kept, (b"connection", b"close")]
    return h11.Request(method=request.method, target=path.encode(), headers=headers)


async def forward(here: Wire, there: Wire, request: h11.Request, moved: Moved) -> None:
    """One request out, its answer back, and no second one on either connection.

    Raises: Refused, while nothing was answered yet; ConnectionError, h11.ProtocolError.
    """
    try:
        async with asyncio.TaskGroup() as both:
            await there.send(request)
            if here.http.they_are_waiting_for_100_continue:
                await here.send(h11.InformationalResponse(status_code=100, headers=[]))
            upload = both.create_task(_upload(here, there, moved))
            await here.send(await _answer(there))
            await _download(here, there, moved)
            upload.cancel()  # the host has answered: what it did not read, it did not want
    except ExceptionGroup as group:
        broken = group.exceptions[0]
        unanswered = here.http.our_state is h11.SEND_RESPONSE and not isinstance(broken, WentAway)
        if unanswered and isinstance(broken, OSError | h11.RemoteProtocolError):
            raise Refused(502, "no_answer", "the host did not answer in HTTP") from broken
        raise broken from None


async def _answer(there: Wire) -> h11.Response:
    """The head of the host's answer, as the client gets it."""
    event: object = None
    while not isinstance(event, h11.Response):
        event = await there.next_event()
        if not isinstance(event, h11.Response | h11.InformationalResponse):
            raise h11.RemoteProtocolError("the host closed the connection")
    dropped = {b"transfer-encoding"}
    if any(name == b"transfer-encoding" for name, _ in event.headers):
        dropped.add(b"content-length")  # which then is not how long it is
    headers = end_to_end(event.headers, without=frozenset(dropped))
    headers.append((b"connection", b"close"))
    return h11.Response(status_code=event.status_code, reason=event.reason, headers=headers)


async def _upload(here: Wire, there: Wire, moved: Moved) -> None:
    event: object = None
    while not isinstance(event, h11.EndOfMessage):
        try:
            event = await here.next_event()
        except h11.RemoteProtocolError as error:
            raise Refused(400, "bad_request", "the body of the request is malformed") from error
        moved()
        if isinstance(event, h11.Data):
            await there.send(event)
        elif not isinstance(event, h11.EndOfMessage):
            raise WentAway
    await there.send(h11.EndOfMessage())
    # A second request on the same connection is nobody's; a client that goes away is noticed.
    while await here.reader.read(CHUNK):
        pass
    raise WentAway


async def _download(here: Wire, there: Wire, moved: Moved) -> None:
    event: object = None
    while not isinstance(event, h11.EndOfMessage):
        event = await there.next_event()
        moved()
        if isinstance(event, h11.Data):
            await here.send(event)
        elif not isinstance(event, h11.EndOfMessage):
            raise h11.RemoteProtocolError("the host broke off")
    await here.send(h11.EndOfMessage())
