"""One HTTP request, carried: what streams must stream, and what ends must end, on both sides."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable

import httpx
import pytest

from emulators.http_server import http_server
from tests.support.emulators.in_box import WITHIN
from tests.support.emulators.port_proxy import proxy
from tests.support.services import free_port, until

AT_ONCE = 3.0
Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
Carried = Callable[[Handler], Awaitable[httpx.AsyncClient]]


@pytest.fixture
async def carried() -> AsyncIterator[Carried]:
    """A client whose requests are carried to a handler, which gets the raw connection."""
    async with contextlib.AsyncExitStack() as stack:

        async def start(handler: Handler) -> httpx.AsyncClient:
            async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                try:
                    async with asyncio.timeout(WITHIN):
                        await handler(reader, writer)
                finally:
                    writer.close()

            server = await stack.enter_async_context(
                await asyncio.start_server(handle, "127.0.0.1", 0)
            )
            port = server.sockets[0].getsockname()[1]
            app = proxy(lambda: asyncio.open_connection("127.0.0.1", port))
            url = await stack.enter_async_context(http_server(app, "127.0.0.1"))
            return await stack.enter_async_context(
                httpx.AsyncClient(base_url=url, timeout=WITHIN, trust_env=False)
            )

        yield start


async def head(reader: asyncio.StreamReader) -> str:
    return (await reader.readuntil(b"\r\n\r\n")).decode()


async def chunk(reader: asyncio.StreamReader) -> bytes:
    """One chunk of a chunked body; nothing is its end."""
    size = int(await reader.readline(), 16)
    data = await reader.readexactly(size)
    assert await reader.readexactly(2) == b"\r\n"
    return data


async def answer(writer: asyncio.StreamWriter, text: bytes) -> None:
    writer.write(text.replace(b"\n", b"\r\n"))
    await writer.drain()


async def test_the_request_arrives_as_it_was_sent_but_for_what_the_proxy_changes(
    carried: Carried,
) -> None:
    heads = []

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append(await head(reader))
        await answer(
            writer,
            b"HTTP/1.1 418 Teapot\nContent-Length: 2\nX-Own: 1\nSet-Cookie: a=1\n"
            b"Set-Cookie: b=2\nConnection: close, x-hop\nX-Hop: 1\nServer: of the box\n\nok",
        )

    client = await carried(handler)
    found = await client.get(
        "/a%20path/%2F?q=%41&r",
        headers={
            "X-Api-Key": "secret",
            "X-Mine": "1",
            "Connection": "keep-alive, X-Hop",
            "X-Hop": "1",
            "Host": "a.name:1234",
        },
    )
    assert (found.status_code, found.text) == (418, "ok")
    assert found.headers.get_list("set-cookie") == ["a=1", "b=2"]
    assert (found.headers["x-own"], found.headers["server"]) == ("1", "of the box")
    assert "x-hop" not in found.headers
    lines = heads[0].lower().splitlines()
    assert heads[0].startswith("GET /a%20path/%2F?q=%41&r HTTP/1.1\r\n")
    assert {"host: a.name:1234", "x-mine: 1", "x-added: yes"} <= set(lines)
    assert not any(line.startswith(("x-api-key", "x-hop", "connection")) for line in lines)
    await client.get("/rewrite?ignored")
    assert heads[1].startswith("GET /rewritten?a=b HTTP/1.1\r\n")


async def test_an_event_stream_arrives_event_by_event(carried: Carried) -> None:
    asked = asyncio.Queue[int]()

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await head(reader)
        await answer(
            writer,
            b"HTTP/1.1 200 OK\nContent-Type: text/event-stream\nTransfer-Encoding: chunked\n\n",
        )
        while number := await asked.get():  # the next one only after the last has been seen
            event = b"data: %d\n\n" % number
            writer.write(b"%x\r\n%s\r\n" % (len(event), event))
        writer.write(b"0\r\n\r\n")

    client = await carried(handler)
    async with client.stream("GET", "/") as stream:
        assert stream.headers["content-type"] == "text/event-stream"
        events = stream.aiter_raw()
        for number in range(1, 20):
            asked.put_nowait(number)
            assert await anext(events) == b"data: %d\n\n" % number
        asked.put_nowait(0)
        assert [rest async for rest in events] == []


async def test_a_request_streams_while_its_answer_does(carried: Carried) -> None:
    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert "transfer-encoding: chunked" in (await head(reader)).lower()
        await answer(writer, b"HTTP/1.1 200 OK\n\n")
        while data := await chunk(reader):
            writer.write(data.upper())

    echoed = asyncio.Queue[bytes]()

    async def body() -> AsyncIterator[bytes]:
        for word in (b"one", b"two", b"three"):
            yield word
            assert await echoed.get() == word.upper()

    # httpx reads no answer while it sends: a connection by hand does
    client = await carried(handler)
    url = client.base_url
    reader, writer = await asyncio.open_connection(url.host, url.port)
    writer.write(b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
    async with asyncio.timeout(WITHIN):
        async for word in body():
            writer.write(b"%x\r\n%s\r\n" % (len(word), word))
            if word == b"one":
                assert (await head(reader)).startswith("HTTP/1.1 200")
            echoed.put_nowait(await chunk(reader))
        writer.write(b"0\r\n\r\n")
        assert await chunk(reader) == b""
    writer.close()


@pytest.mark.parametrize("silent", [True, False], ids=["before the answer", "amid the answer"])
async def test_a_client_that_hangs_up_closes_the_connection_into_the_box_at_once(
    carried: Carried, silent: bool
) -> None:
    closed = asyncio.Event()
    asked = asyncio.Event()

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await head(reader)
        if not silent:
            await answer(writer, b"HTTP/1.1 200 OK\n\nsome")
        asked.set()
        with contextlib.suppress(ConnectionError):
            assert await reader.read() == b""
        closed.set()

    client = await carried(handler)
    reader, writer = await asyncio.open_connection(client.base_url.host, client.base_url.port)
    writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
    await asyncio.wait_for(asked.wait(), WITHIN)
    if not silent:
        await reader.readuntil(b"some")
    writer.close()
    await until(closed.is_set, "the box's end is closed", within=AT_ONCE)


async def test_an_answer_without_a_length_ends_when_the_box_closes(carried: Carried) -> None:
    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await head(reader)
        await answer(writer, b"HTTP/1.0 200 OK\n\nall of it")

    client = await carried(handler)
    assert (await client.get("/")).text == "all of it"
    assert (await client.get("/")).text == "all of it"


@pytest.mark.parametrize(
    "cut",
    [
        b"HTTP/1.1 200 OK\nContent-Length: 100\n\nnot all",
        b"HTTP/1.1 200 OK\nTransfer-Encoding: chunked\n\n5\nnot a",
        b"HTTP/1.1 200 OK\nTransfer-Encoding: chunked\n\nnonsense\n",
    ],
)
async def test_an_answer_that_breaks_off_is_never_taken_for_whole(
    carried: Carried, cut: bytes
) -> None:
    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await head(reader)
        await answer(writer, cut)

    client = await carried(handler)
    with pytest.raises((httpx.ReadError, httpx.RemoteProtocolError)):
        await client.get("/")


@pytest.mark.parametrize("said", [b"", b"HTTP/1.1 200", b"SSH-2.0-OpenSSH\n\n"])
async def test_no_answer_is_for_the_caller_to_tell(carried: Carried, said: bytes) -> None:
    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await head(reader)
        await answer(writer, said)

    client = await carried(handler)
    found = await client.post("/", content=b"x" * 100_000)
    assert (found.status_code, found.text) == (502, "NoAnswer")


async def test_a_box_that_closes_amid_the_request_gives_no_answer(carried: Carried) -> None:
    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(100_000)

    client = await carried(handler)
    for _ in range(20):  # whether reading or writing is told first is not to be told here
        found = await client.post("/", content=bytes(4 << 20))
        assert (found.status_code, found.text) == (502, "NoAnswer")


async def test_a_refused_connection_is_for_the_caller_to_tell() -> None:
    app = proxy(lambda: asyncio.open_connection("127.0.0.1", free_port()))
    async with (
        http_server(app, "127.0.0.1") as url,
        httpx.AsyncClient(timeout=WITHIN, trust_env=False) as client,
    ):
        found = await client.get(url)
    assert (found.status_code, found.text) == (502, "ConnectionRefusedError")


@pytest.mark.parametrize(
    ("method", "said"),
    [
        ("HEAD", b"HTTP/1.1 200 OK\nContent-Length: 5\n\n"),
        ("GET", b"HTTP/1.1 204 No Content\n\n"),
        ("GET", b"HTTP/1.1 304 Not Modified\nContent-Length: 5\n\n"),
        ("GET", b"HTTP/1.1 103 Early Hints\n\nHTTP/1.1 200 OK\nContent-Length: 0\n\n"),
    ],
)
async def test_an_answer_without_a_body_has_none(
    carried: Carried, method: str, said: bytes
) -> None:
    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await head(reader)
        await answer(writer, said)
        await reader.read()  # open, as a server that keeps its connections

    client = await carried(handler)
    for _ in range(2):  # the client's own connection is fit for another request
        found = await client.request(method, "/")
        assert (found.is_success or found.status_code == 304, found.content) == (True, b"")


async def test_a_client_that_expects_a_go_ahead_gets_it_and_the_box_is_not_asked(
    carried: Carried,
) -> None:
    heads = []

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append((await head(reader)).lower())
        assert await reader.readexactly(4) == b"body"
        await answer(writer, b"HTTP/1.1 200 OK\nContent-Length: 0\n\n")

    client = await carried(handler)
    reader, writer = await asyncio.open_connection(client.base_url.host, client.base_url.port)
    writer.write(b"PUT / HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\nExpect: 100-continue\r\n\r\n")
    async with asyncio.timeout(WITHIN):
        assert (await head(reader)).startswith("HTTP/1.1 100")
        writer.write(b"body")
        assert (await head(reader)).startswith("HTTP/1.1 200")
    assert "expect" not in heads[0]
    writer.close()


async def test_an_answer_that_comes_before_the_request_is_over_arrives(carried: Carried) -> None:
    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await head(reader)
        await answer(writer, b"HTTP/1.1 413 Too Large\nContent-Length: 3\n\nbig")
        await reader.read(1 << 20)  # and closes in the middle of the rest

    client = await carried(handler)
    found = await client.post("/", content=secrets.token_bytes(4 << 20))
    assert (found.status_code, found.text) == (413, "big")


async def test_an_endless_answer_waits_for_its_reader(carried: Carried) -> None:
    sent = 0
    stalled = asyncio.Event()

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        await head(reader)
        await answer(writer, b"HTTP/1.1 200 OK\n\n")
        block = bytes(1 << 16)
        with contextlib.suppress(ConnectionError):
            while sent < 256 << 20:
                writer.write(block)
                sent += len(block)
                try:
                    await asyncio.wait_for(writer.drain(), 1)
                except TimeoutError:
                    stalled.set()
                    return

    client = await carried(handler)
    async with client.stream("GET", "/"):
        await asyncio.wait_for(stalled.wait(), WITHIN)
    assert sent < 64 << 20
