"""What a session's proxy refuses: nothing is looked up or connected that need not be."""

from __future__ import annotations

import json

import pytest

from sidecar.gateway.egress.proxy import Allowed, Rules
from tests.support.egress import ANY_PORT, Web, echo, last, listener, running, said, status


async def test_off_lets_nothing_out_and_says_so() -> None:
    async with running(Allowed("off")) as there:
        answer = await there.ask(b"CONNECT pypi.org:443 HTTP/1.1\r\nHost: pypi.org:443\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 403 off for this session\r\n")
        error = json.loads(answer.partition(b"\r\n\r\n")[2])["error"]
        assert error.keys() >= {"code", "message", "hint", "retryable"}
        assert "egress" in error["hint"]
        assert said(await last(there)) == ("pypi.org", "refused", "off for this session")
        assert (there.names.asked, there.dialled.addresses) == ([], [])


@pytest.mark.parametrize(
    "host",
    [
        "evilpypi.org",
        "pypi.org.evil.com",
        "pypi.org-evil.com",
        "files.pypi.org",
        "xn--pypi-4ve.org",
        "1.2.3.4",
    ],
)
async def test_what_only_looks_like_the_allow_list_is_not_even_looked_up(host: str) -> None:
    rules = Rules(allow=("pypi.org",), ports=frozenset({443}))
    async with running(Allowed("allow"), rules) as there:
        answer = await there.ask(f"CONNECT {host}:443 HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        assert status(answer) == 403
        assert b"allow-list" in answer
        assert (there.names.asked, there.dialled.addresses) == ([], [])


async def test_the_allow_list_is_the_stacks_and_the_sessions_own() -> None:
    rules = Rules(allow=("stack.example",), ports=ANY_PORT)
    async with (
        running(Allowed("allow", ("*.own.example",)), rules) as there,
        listener(echo) as port,
    ):
        for name in ("stack.example", "a.own.example"):
            there.permit(name, port)
            line, _, writer = await there.connect(f"{name.upper()}:{port}")
            writer.close()
            assert b" 200 " in line


@pytest.mark.parametrize(
    "addresses",
    [
        ["127.0.0.1"],
        ["10.0.0.1"],
        ["169.254.169.254"],
        ["::1"],
        ["fe80::1%2"],
        ["::ffff:127.0.0.1"],
        ["93.184.216.34", "10.0.0.1"],
        ["no address"],
        [],
    ],
)
@pytest.mark.parametrize("mode", ["open", "allow"])
async def test_a_name_that_leads_inside_is_refused_and_nothing_is_connected(
    addresses: list[str], mode: str
) -> None:
    rules = Rules(allow=("evil.example",), ports=frozenset({80}))
    async with running(Allowed("open" if mode == "open" else "allow"), rules) as there:
        there.names.known["evil.example"] = [addresses]
        for request in (
            b"CONNECT evil.example:80 HTTP/1.1\r\nHost: x\r\n\r\n",
            b"GET http://evil.example/ HTTP/1.1\r\nHost: x\r\n\r\n",
        ):
            assert status(await there.ask(request)) in (403, 502)
        assert there.dialled.addresses == []
        assert there.names.asked == ["evil.example"] * 2


@pytest.mark.parametrize(
    "target",
    [
        "127.0.0.1:80",
        "10.1.2.3:80",
        "169.254.169.254:80",
        "[::1]:80",
        "[::ffff:127.0.0.1]:80",
        "0.0.0.0:80",
        "localhost:80",
        "127.1:80",
        "2130706433:80",
        "0x7f.1:80",
        "017700000001:80",
        "localhost.:80",
        "a@127.0.0.1:80",
    ],
)
async def test_loopback_and_private_addresses_are_refused_in_every_spelling(target: str) -> None:
    async with running(rules=Rules(ports=frozenset({80}))) as there:
        tunnel = await there.ask(f"CONNECT {target} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        plain = await there.ask(f"GET http://{target}/ HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        assert {status(tunnel), status(plain)} <= {400, 403}
        assert (there.names.asked, there.dialled.addresses) == ([], [])
        record = await last(there, 2)
        assert record["verdict"] == "refused"
        assert record["host"]


async def test_the_address_that_was_checked_is_the_one_that_is_connected_to() -> None:
    """A name that leads elsewhere when it is asked for again (rebinding) gains nothing."""
    async with running() as there, listener(echo) as port:
        there.policy.ports.add(port)
        there.names.known["rebind.example"] = [["127.0.0.1"], ["10.0.0.1"]]
        line, _, writer = await there.connect(f"rebind.example:{port}")
        writer.close()
        assert b" 200 " in line
        assert there.names.asked == ["rebind.example"]  # once
        assert there.dialled.addresses == [("127.0.0.1", port)]
        # and the second answer is checked like the first
        line, _, writer = await there.connect(f"rebind.example:{port}")
        writer.close()
        assert b" 403 " in line
        assert there.dialled.addresses == [("127.0.0.1", port)]


@pytest.mark.parametrize("where", ["http://10.0.0.1/", "http://inside.example/", "http://[::1]/"])
async def test_a_redirect_inside_is_a_new_request_and_refused(where: str) -> None:
    moved = f"HTTP/1.1 302 Found\r\nLocation: {where}\r\nContent-Length: 0\r\n\r\n".encode()
    async with running() as there, listener(Web(moved)) as port:
        there.permit("web.example", port)
        there.names.known["inside.example"] = [["192.168.0.1"]]
        answer = await there.ask(
            f"GET http://web.example:{port}/ HTTP/1.1\r\nHost: x\r\n\r\n".encode()
        )
        # not followed here: the client is told, and asks again
        assert status(answer) == 302
        assert len(there.dialled.addresses) == 1
        followed = answer.lower().split(b"location: ")[1].split(b"\r\n")[0].decode()
        answer = await there.ask(f"GET {followed} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        assert status(answer) == 403
        assert len(there.dialled.addresses) == 1


async def test_other_ports_are_refused() -> None:
    async with running(rules=Rules()) as there:
        answer = await there.ask(b"CONNECT host.example:22 HTTP/1.1\r\nHost: x\r\n\r\n")
        assert status(answer) == 403
        assert b"port 22" in answer
        assert there.names.asked == []


@pytest.mark.parametrize(
    "framing",
    [
        "Content-Length: 4\r\nTransfer-Encoding: chunked",
        "Transfer-Encoding: chunked\r\nContent-Length: 4",
        "Content-Length: 4\r\nContent-Length: 5",
        "Content-Length: 4, 5",
        "Content-Length: +4",
        "Content-Length: -1",
        "Transfer-Encoding: identity",
        "Transfer-Encoding: chunked, chunked",
        "Transfer-Encoding: xchunked",
        "Transfer-Encoding : chunked",
        "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked",
        "X: 1\rTransfer-Encoding: chunked",
        "X\0: 1",
    ],
)
async def test_a_request_of_doubtful_length_reaches_nobody(framing: str) -> None:
    web = Web()
    async with running() as there, listener(web) as port:
        there.permit("web.example", port)
        answer = await there.ask(
            f"POST http://web.example:{port}/ HTTP/1.1\r\nHost: x\r\n{framing}\r\n\r\n".encode()
            + b"0\r\n\r\nGET http://web.example/smuggled HTTP/1.1\r\nHost: x\r\n\r\n"
        )
        assert status(answer) in (400, 501)
        assert web.heads == []
        assert there.dialled.addresses == []


async def test_a_second_request_on_the_same_connection_is_dropped() -> None:
    web = Web()
    async with running() as there, listener(web) as port:
        there.permit("web.example", port)
        one = f"GET http://web.example:{port}/one HTTP/1.1\r\nHost: x\r\n\r\n"
        answer = await there.ask((one + one.replace("one", "two")).encode())
        assert answer.count(b"HTTP/1.1 200") == 1
        assert [head.split(b" ")[1] for head in web.heads] == [b"/one"]


async def test_a_malformed_body_ends_in_400_and_is_not_passed_on() -> None:
    web = Web()
    async with running() as there, listener(web) as port:
        there.permit("web.example", port)
        answer = await there.ask(
            f"POST http://web.example:{port}/ HTTP/1.1\r\nHost: x\r\n"
            "Transfer-Encoding: chunked\r\n\r\nZZ\r\nGET / HTTP/1.1\r\n\r\n".encode()
        )
        assert status(answer) == 400
        assert web.bodies == []


@pytest.mark.parametrize(
    "request_line",
    [
        "TRACE http://web.example/ HTTP/1.1",
        "CONNECT http://web.example:80 HTTP/1.1",
        "CONNECT /path HTTP/1.1",
        "GET https://web.example/ HTTP/1.1",
        "GET http://web.example/ HTTP/2.0",
        "GET http://web.example/ a HTTP/1.1",
    ],
)
async def test_what_is_no_proxy_request_is_refused(request_line: str) -> None:
    async with running() as there:
        answer = await there.ask(f"{request_line}\r\nHost: x\r\n\r\n".encode())
        assert 400 <= status(answer) < 506
        assert there.dialled.addresses == []


async def test_a_connect_with_a_body_is_refused() -> None:
    async with running() as there:
        answer = await there.ask(
            b"CONNECT web.example:443 HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\nabc"
        )
        assert status(answer) == 400
