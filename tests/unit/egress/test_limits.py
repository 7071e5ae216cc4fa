"""The bounds of a session's proxy."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence

import pytest

from sidecar.gateway.egress.addresses import Resolver
from sidecar.gateway.egress.proxy import Allowed, Rules
from sidecar.gateway.egress.tally import BYTES_SPENT, IDLE, REVOKED, STILL_OPEN
from tests.support.egress import ANY_PORT, code, echo, last, listener, rest, running, status
from tests.support.gateway import until


async def test_a_head_without_end_is_cut_off() -> None:
    async with running() as there:
        answer = await there.ask(
            b"CONNECT web.example:443 HTTP/1.1\r\n" + b"X: " + b"y" * 200_000 + b"\r\n"
        )
        assert status(answer) == 431
        assert there.names.asked == []


async def test_a_head_that_never_ends_is_not_waited_for() -> None:
    async with running(rules=Rules(head_seconds=0.05)) as there:
        answer = await there.ask(b"CONNECT web.example:443 HTTP/1.1\r\nHost: x\r\n")
        assert (status(answer), code(answer)) == (408, "too_slow")
        assert (await last(there))["verdict"] == "refused"


async def test_no_more_connections_at_a_time_than_the_rules_say() -> None:
    async with running(rules=Rules(tunnels=2, ports=ANY_PORT)) as there, listener(echo) as port:
        there.permit("echo.example", port)
        kept = [await there.connect(f"echo.example:{port}") for _ in range(2)]
        line, _, writer = await there.connect(f"echo.example:{port}")
        assert b" 429 " in line
        writer.close()
        kept[0][2].close()
        await until(lambda: len(there.told) == 2)
        line, _, writer = await there.connect(f"echo.example:{port}")
        assert b" 200 " in line
        for each in (writer, kept[1][2]):
            each.close()


async def test_no_more_bytes_in_a_turn_than_the_rules_say() -> None:
    async with running(rules=Rules(bytes=100_000, ports=ANY_PORT)) as there, listener(echo) as port:
        there.permit("echo.example", port)
        _, reader, writer = await there.connect(f"echo.example:{port}")
        writer.write(b"x" * 500_000)
        got = await rest(reader)
        writer.close()
        assert len(got) <= 100_000
        record = await last(there)
        assert record["reason"] == BYTES_SPENT
        assert record["verdict"] == "allowed"
        refused = await there.ask(
            f"CONNECT echo.example:{port} HTTP/1.1\r\nHost: x\r\n\r\n".encode()
        )
        assert status(refused) == 403
        there.proxy.begin_turn(Allowed("open"))
        line, _, writer = await there.connect(f"echo.example:{port}")
        writer.close()
        assert b" 200 " in line


async def test_a_connection_on_which_nothing_moves_is_ended() -> None:
    rules = Rules(idle_seconds=0.05, ports=ANY_PORT)
    async with running(rules=rules) as there, listener(echo) as port:
        there.permit("echo.example", port)
        _, reader, writer = await there.connect(f"echo.example:{port}")
        assert await rest(reader) == b""
        writer.close()
        assert (await last(there))["reason"] == IDLE


async def test_a_reader_that_does_not_read_holds_the_writer_up() -> None:
    """And not the gateway's memory."""
    written = 0
    held_up = asyncio.Event()

    async def flood(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal written
        with contextlib.suppress(TimeoutError):
            while written < 256 << 20:
                writer.write(b"x" * 65536)
                async with asyncio.timeout(2):
                    await writer.drain()
                written += 65536
            return
        held_up.set()

    async with running() as there, listener(flood) as port:
        there.permit("flood.example", port)
        _, reader, writer = await there.connect(f"flood.example:{port}")
        async with asyncio.timeout(60):
            await held_up.wait()
        assert written < 32 << 20
        assert await reader.read(10)
        writer.close()


async def test_a_turn_that_allows_less_ends_what_is_open() -> None:
    async with running() as there, listener(echo) as port:
        there.permit("echo.example", port)
        _, reader, writer = await there.connect(f"echo.example:{port}")
        there.proxy.begin_turn(Allowed("allow", ("echo.example",)))
        writer.write(b"still")
        async with asyncio.timeout(20):
            assert await reader.readexactly(5) == b"still"
        there.proxy.begin_turn(Allowed("off"))
        assert await rest(reader) == b""
        record = await last(there, 3)  # two told that it was open when a turn began
        assert record["reason"] == REVOKED
        writer.close()


async def test_what_is_open_when_a_turn_ends_is_told_with_its_bytes() -> None:
    async with running() as there, listener(echo) as port:
        there.permit("echo.example", port)
        _, reader, writer = await there.connect(f"echo.example:{port}")
        writer.write(b"12345")
        async with asyncio.timeout(20):
            await reader.readexactly(5)
        assert there.told == []
        there.proxy.flush()
        assert there.told[0]["reason"] == STILL_OPEN
        assert (there.told[0]["bytes_up"], there.told[0]["bytes_down"]) == (5, 5)
        writer.close()
        assert (await last(there, 2))["connections"] == 0


async def test_nothing_is_told_of_a_session_that_is_closed() -> None:
    async with running() as there, listener(echo) as port:
        there.permit("echo.example", port)
        _, reader, writer = await there.connect(f"echo.example:{port}")
        there.proxy.close()
        told = len(there.told)
        writer.close()
        await reader.read(-1)
        await until(lambda: there.way.open == 0)
        assert len(there.told) == told


def test_why_a_connection_was_ended_is_said_in_words() -> None:
    assert (BYTES_SPENT, IDLE, REVOKED) == (
        "this turn has moved as many bytes as it may",
        "nothing moved for too long",
        "not allowed any more",
    )


@pytest.mark.parametrize(
    ("request_head", "words"),
    [
        (b"CONNECT web.example:22 HTTP/1.1\r\nHost: x\r\n\r\n", b"port 22 is not open"),
        (b"CONNECT web.example:443 HTTP/1.1\r\n", b"the request did not arrive in time"),
    ],
)
async def test_a_refusal_says_why_in_words(request_head: bytes, words: bytes) -> None:
    async with running(rules=Rules(head_seconds=0.05)) as there:
        assert words in await there.ask(request_head)


async def test_no_more_connections_of_all_sessions_together_than_the_rules_say() -> None:
    rules = Rules(tunnels=2, total=3, ports=ANY_PORT)
    async with running(rules=rules) as one, listener(echo) as port:
        one.permit("echo.example", port)
        async with running(way=one.way) as other:
            kept = [await one.connect(f"echo.example:{port}") for _ in range(2)]
            kept.append(await other.connect(f"echo.example:{port}"))
            line, _, writer = await other.connect(f"echo.example:{port}")
            assert b" 429 " in line
            writer.close()
            kept[0][2].close()
            await until(lambda: one.way.open == 2)
            line, _, writer = await other.connect(f"echo.example:{port}")
            assert b" 200 " in line
            for each in (writer, kept[1][2], kept[2][2]):
                each.close()


class SlowNames:
    """Names that are looked up until they are let go."""

    def __init__(self, names: Resolver) -> None:
        self.asked, self.go_on = asyncio.Event(), asyncio.Event()
        self._names = names

    async def __call__(self, name: str) -> Sequence[str]:
        self.asked.set()
        await self.go_on.wait()
        return await self._names(name)


async def test_what_was_spent_during_a_look_up_counts_for_what_is_looked_up() -> None:
    async with running(rules=Rules(bytes=100_000, ports=ANY_PORT)) as there, listener(echo) as port:
        there.permit("echo.example", port)
        _, reader, writer = await there.connect(f"echo.example:{port}")
        slow = there.way.resolve = SlowNames(there.way.resolve)
        late = asyncio.ensure_future(
            there.ask(f"CONNECT echo.example:{port} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        )
        async with asyncio.timeout(20):
            await slow.asked.wait()
            writer.write(b"x" * 500_000)
            await rest(reader)
            slow.go_on.set()
            answer = await late
        writer.close()
        assert (status(answer), code(answer)) == (403, "egress_bytes")
        assert len(there.dialled.addresses) == 1


@pytest.mark.parametrize("allowed", [Allowed("off"), Allowed("allow", ("elsewhere.example",))])
async def test_a_turn_that_begins_during_a_look_up_decides_over_what_is_looked_up(
    allowed: Allowed,
) -> None:
    async with running() as there, listener(echo) as port:
        there.permit("echo.example", port)
        slow = there.way.resolve = SlowNames(there.way.resolve)
        late = asyncio.ensure_future(
            there.ask(f"CONNECT echo.example:{port} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        )
        async with asyncio.timeout(20):
            await slow.asked.wait()
            there.proxy.begin_turn(allowed)
            slow.go_on.set()
            assert b" 200 " not in await late
        assert there.dialled.addresses == []
