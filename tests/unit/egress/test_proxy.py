"""What a session's proxy lets through, on its real socket, and what it counts."""

from __future__ import annotations

import asyncio

import pytest

from sidecar.gateway.egress.proxy import Allowed
from sidecar.gateway.egress.tally import BROKEN_OFF
from tests.support.egress import Web, echo, last, listener, running, said, status


async def test_a_tunnel_carries_bytes_both_ways_and_counts_them() -> None:
    async with running() as there, listener(echo) as port:
        there.permit("echo.example", port)
        line, reader, writer = await there.connect(f"echo.example:{port}")
        assert line == b"HTTP/1.1 200 Connection established"
        writer.write(b"x" * 300_000)
        writer.write_eof()
        async with asyncio.timeout(20):
            assert await reader.read(-1) == b"x" * 300_000
        writer.close()
        record = await last(there)
    assert record == {
        "host": "echo.example",
        "port": port,
        "method": "CONNECT",
        "verdict": "allowed",
        "reason": "",
        "connections": 1,
        "bytes_up": 300_000,
        "bytes_down": 300_000,
    }


async def test_what_a_client_sends_before_the_answer_is_not_lost() -> None:
    async with running() as there, listener(echo) as port:
        there.permit("echo.example", port)
        reader, writer = await asyncio.open_unix_connection(str(there.path))
        writer.write(f"CONNECT echo.example:{port} HTTP/1.1\r\nHost: x\r\n\r\nearly".encode())
        writer.write_eof()
        async with asyncio.timeout(20):
            answer = await reader.read(-1)
        writer.close()
        assert answer.endswith(b"\r\n\r\nearly")
        assert (await last(there))["bytes_up"] == 5


async def test_model_requests_go_where_they_always_went() -> None:
    async with running(Allowed("off")) as there:
        for method in (b"GET", b"POST", b"PUT"):
            answer = await there.ask(
                method + b" /v1/messages HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
            )
            assert answer.endswith(b"model " + method + b" /v1/messages")
        assert there.told == []


async def test_a_request_is_told_apart_however_its_bytes_arrive() -> None:
    async with running() as there, listener(Web()) as port:
        there.permit("web.example", port)
        for target, end in (
            (f"http://web.example:{port}/", b"hi"),
            ("/v1/models", b"model GET /v1/models"),
        ):
            request = f"GET {target} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode()
            reader, writer = await asyncio.open_unix_connection(str(there.path))
            for place in range(len(request)):
                writer.write(request[place : place + 1])
                await writer.drain()
                await asyncio.sleep(0)
            async with asyncio.timeout(20):
                assert (await reader.read(-1)).endswith(end)
            writer.close()


async def test_a_connection_to_the_model_never_becomes_a_proxys() -> None:
    async with running() as there, listener(echo) as port:
        there.permit("echo.example", port)
        answer = await there.ask(
            b"GET /v1/models HTTP/1.1\r\nHost: x\r\n\r\n"
            + f"CONNECT echo.example:{port} HTTP/1.1\r\nHost: x\r\n\r\nhello".encode()
        )
        assert b"Connection established" not in answer
        again = await there.ask(
            b"GET /v1/models HTTP/1.1\r\nHost: x\r\n\r\n"
            + f"GET http://echo.example:{port}/ HTTP/1.1\r\nHost: x\r\n".encode()
            + b"Connection: close\r\n\r\n"
        )
        assert again.count(b"HTTP/1.1 200") == 2  # both by the stand-in for the model APIs
        assert there.dialled.addresses == []


async def test_a_plain_request_is_written_anew_for_the_host() -> None:
    web = Web()
    async with running() as there, listener(web) as port:
        there.permit("web.example", port)
        answer = await there.ask(
            f"POST http://WEB.example:{port}/a?b=c HTTP/1.1\r\n"
            "Host: other.example\r\n"
            "Proxy-Authorization: Basic c2VjcmV0\r\n"
            "Proxy-Connection: keep-alive\r\n"
            "Connection: keep-alive, X-Private, Content-Length\r\n"
            "X-Private: secret\r\n"
            "Keep-Alive: 5\r\n"
            "TE: trailers\r\n"
            "Upgrade: h2c\r\n"
            "X-Kept: yes\r\n"
            "Content-Length: 4\r\n\r\nbody".encode()
        )
        record = await last(there)
    assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
    assert answer.endswith(b"\r\n\r\nhi")
    [head] = web.heads
    assert head.split(b"\r\n")[:-2] == [
        b"POST /a?b=c HTTP/1.1",
        f"host: web.example:{port}".encode(),
        b"x-kept: yes",
        b"content-length: 4",
        b"connection: close",
    ]
    assert web.bodies == [b"body"]
    assert (record["method"], record["host"]) == ("POST", "web.example")
    assert record["bytes_up"] == len(head) + 4
    assert record["bytes_down"] == len(web.answer)


@pytest.mark.parametrize(
    ("given", "body"),
    [
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\n\r\n", b"hi"),
        (b"HTTP/1.0 200 OK\r\n\r\nuntil the end", b"until the end"),
        (
            b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n"
            b"2\r\nhi\r\n0\r\n\r\n",
            b"hi",
        ),
        (b"HTTP/1.1 103 Early Hints\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi", b"hi"),
        (b"HTTP/1.1 204 No Content\r\n\r\n", b""),
    ],
)
async def test_an_answer_arrives_whole_whatever_its_framing(given: bytes, body: bytes) -> None:
    async with running() as there, listener(Web(given)) as port:
        there.permit("web.example", port)
        answer = await there.ask(
            f"GET http://web.example:{port}/ HTTP/1.0\r\n\r\n".encode()  # so: as it is, to the end
        )
    head, _, rest = answer.partition(b"\r\n\r\n")
    assert rest == body
    assert b"transfer-encoding" not in head.lower()


@pytest.mark.parametrize(
    "broken",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n",
    ],
)
async def test_an_answer_that_breaks_off_does_not_look_whole(broken: bytes) -> None:
    async with running() as there, listener(Web(broken)) as port:
        there.permit("web.example", port)
        answer = await there.ask(
            f"GET http://web.example:{port}/ HTTP/1.1\r\nHost: x\r\n\r\n".encode()
        )
        assert b"half" in answer
        assert b"content-length: 10" in answer.lower() or b"\r\n0\r\n" not in answer
        assert (await last(there))["reason"] == BROKEN_OFF


async def test_what_is_no_http_is_a_clear_502() -> None:
    async with running() as there, listener(Web(b"SSH-2.0-x\r\n\r\n")) as port:
        there.permit("web.example", port)
        answer = await there.ask(
            f"GET http://web.example:{port}/ HTTP/1.1\r\nHost: x\r\n\r\n".encode()
        )
        assert status(answer) == 502
        assert said(await last(there)) == (
            "web.example",
            "allowed",
            "the host did not answer in HTTP",
        )


async def test_a_name_that_nobody_knows_and_a_port_that_nobody_serves_are_clear_502s() -> None:
    async with running() as there:
        async with listener(echo) as port:
            there.permit("closed.example", port)
        for name, reason in (
            ("unknown.example", "no address is known for unknown.example"),
            ("closed.example", "closed.example does not answer"),
        ):
            answer = await there.ask(f"CONNECT {name}:{port} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
            assert status(answer) == 502
            assert reason.encode() in answer
        assert said(await last(there, 2)) == ("closed.example", "allowed", reason)
