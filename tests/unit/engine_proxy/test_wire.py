"""Bytes on the socket: what two readers of HTTP would understand in two ways."""

from __future__ import annotations

import gzip
import json

import pytest

from tests.support.engine_proxy import NAME, Proxy, RecordingEngine, create_body

TARGET = f"/v1.41/containers/create?name={NAME}"
CREATED = ("POST", TARGET)
GOOD = json.dumps(create_body()).encode()
BAD = json.dumps(create_body() | {"HostConfig": {"Privileged": True}}).encode()
CLOSE = b"Connection: close\r\n"


def request(body: bytes, headers: bytes = b"", target: str = TARGET) -> bytes:
    start = f"POST {target} HTTP/1.1\r\nHost: engine\r\n".encode()
    return start + headers + b"Content-Length: %d\r\n\r\n" % len(body) + body


def chunked(body: bytes, headers: bytes = b"", size: int = 7) -> bytes:
    start = f"POST {TARGET} HTTP/1.1\r\nHost: engine\r\n".encode()
    parts = [body[at : at + size] for at in range(0, len(body), size)]
    chunks = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts)
    return start + headers + b"Transfer-Encoding: chunked\r\n\r\n" + chunks + b"0\r\n\r\n"


async def test_a_chunked_body_is_put_together_and_judged_whole(
    proxy: Proxy, engine: RecordingEngine
) -> None:
    (reply,) = await proxy.send(chunked(BAD, CLOSE))
    assert reply.status == 403
    assert engine.seen == []
    (reply,) = await proxy.send(chunked(GOOD, CLOSE))
    assert reply.status == 201
    assert engine.seen[0].headers["Content-Length"] == str(len(GOOD))
    assert "Transfer-Encoding" not in engine.seen[0].headers
    assert engine.seen[0].body == GOOD


async def test_an_endless_chunked_body_is_cut_off(proxy: Proxy, engine: RecordingEngine) -> None:
    (reply,) = await proxy.send(chunked(b" " * 200_000, size=50_000))
    assert (reply.status, "longer than" in reply.message) == (403, True)
    assert engine.seen == []


async def test_a_body_that_does_not_come_is_not_waited_for(
    proxy: Proxy, engine: RecordingEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sidecar.engine_proxy.server.BODY_SECONDS", 0.2)
    (reply,) = await proxy.send(request(GOOD, CLOSE)[:-1])
    assert (reply.status, "did not come within" in reply.message) == (403, True)
    assert engine.seen == []


@pytest.mark.parametrize("length", [0, 5, len(GOOD), len(GOOD) + 400])
async def test_a_length_beside_a_transfer_encoding_smuggles_nothing(
    proxy: Proxy, engine: RecordingEngine, length: int
) -> None:
    hidden = request(BAD, CLOSE)
    for body in (chunked(GOOD, b"Content-Length: %d\r\n" % length), chunked(b"")):
        replies = await proxy.send(body + hidden)
        assert replies[-1].status in (400, 403)
    assert all(call.body == GOOD for call in engine.seen)


@pytest.mark.parametrize(
    "headers",
    [
        b"Content-Length: 0\r\n",
        b"Transfer-Encoding: gzip, chunked\r\n",
        b"Transfer-Encoding : chunked\r\n",
        b"Transfer-Encoding: xchunked\r\n",
        b" folded: x\r\n",
    ],
    ids=lambda value: value.decode().strip(),
)
async def test_a_request_of_unclear_length_is_not_served(
    proxy: Proxy, engine: RecordingEngine, headers: bytes
) -> None:
    replies = await proxy.send(request(GOOD, headers))
    assert [reply.status in (400, 403) for reply in replies] == [True]
    assert engine.seen == []


async def test_a_second_request_behind_a_create_is_judged_on_its_own(
    proxy: Proxy, engine: RecordingEngine
) -> None:
    replies = await proxy.send(request(GOOD) + request(BAD) + request(GOOD))
    # a refusal ends the connection: what stands behind it is not read
    assert [reply.status for reply in replies] == [201, 403]
    assert engine.calls == [CREATED]
    assert engine.seen[0].body == GOOD


async def test_bytes_behind_the_length_are_no_part_of_the_body(
    proxy: Proxy, engine: RecordingEngine
) -> None:
    replies = await proxy.send(request(GOOD) + b'{"HostConfig":{"Privileged":true}}')
    assert replies[-1].status == 400
    assert all(call.body == GOOD for call in engine.seen)


@pytest.mark.parametrize(
    "headers",
    [
        b"Connection: Upgrade\r\nUpgrade: tcp\r\n",
        b"Connection: Upgrade\r\nUpgrade: h2c\r\n",
        b"Connection: Upgrade\r\nUpgrade: websocket\r\n",
        b"upgrade: tcp\r\n",
    ],
    ids=lambda value: value.decode().strip().replace("\r\n", ", "),
)
async def test_no_connection_is_upgraded(
    proxy: Proxy, engine: RecordingEngine, headers: bytes
) -> None:
    replies = await proxy.send(request(GOOD, headers) + request(GOOD))
    assert [reply.status for reply in replies] == [403]
    assert "upgrade" in replies[0].message
    assert engine.seen == []


async def test_a_tunnel_is_refused(proxy: Proxy, engine: RecordingEngine) -> None:
    head = b"CONNECT engine:80 HTTP/1.1\r\nHost: engine\r\n\r\n"
    replies = await proxy.send(head + request(GOOD))
    assert {reply.status for reply in replies} <= {400, 403}
    assert engine.seen == []


async def test_no_header_of_the_client_reaches_the_engine(
    proxy: Proxy, engine: RecordingEngine
) -> None:
    headers = b"X-Registry-Auth: abc\r\nX-Any: 1\r\nCookie: a=b\r\nExpect: x\r\n"
    (reply,) = await proxy.send(request(GOOD, headers + CLOSE))
    assert reply.status == 201
    assert set(engine.seen[0].headers) == {
        "Host",
        "Accept",
        "Accept-Encoding",
        "User-Agent",
        "Content-Type",
        "Content-Length",
        "Connection",
    }
    assert engine.seen[0].headers["Host"] == "engine"


async def test_a_compressed_body_is_not_unpacked(proxy: Proxy, engine: RecordingEngine) -> None:
    packed = request(gzip.compress(GOOD), b"Content-Encoding: gzip\r\n" + CLOSE)
    (reply,) = await proxy.send(packed)
    assert (reply.status, reply.message) == (403, "the body is not JSON")
    assert engine.seen == []
