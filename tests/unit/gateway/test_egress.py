"""Egress in the real gateway process: its terms, its records, its settings. Nothing here connects:
what is asked for is refused before."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest

from tests.support.gateway import Gateway, client_of, gateway
from tests.support.services import free_port


@pytest.fixture(scope="module")
async def shared() -> AsyncIterator[Gateway]:
    async with gateway(HOLDFAST_EGRESS_ALLOW="listed.example,127.0.0.1.nip.example") as running:
        yield running


async def begin(running: Gateway, session_id: UUID, **terms: Any) -> Path:
    """A turn begins; the session's socket."""
    async with client_of(running.control) as client:
        answer = await client.put(
            f"/sessions/{session_id}", json={"turn_id": str(uuid4()), **terms}
        )
    assert answer.status_code == 200, answer.text
    return Path(answer.json()["socket"])


async def connect(path: Path, target: str) -> str:
    """The status line."""
    reader, writer = await asyncio.open_unix_connection(str(path))
    writer.write(f"CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\n".encode())
    async with asyncio.timeout(20):
        line = await reader.readline()
        await reader.read(-1)
    writer.close()
    return line.decode().strip()


async def records(running: Gateway, session_id: UUID, **how: Any) -> list[dict[str, Any]]:
    async with client_of(running.control) as client:
        answer = await client.get(f"/sessions/{session_id}/records", params=how)
    return [each["data"] for each in answer.json()["records"] if each["kind"] == "egress"]


async def test_a_session_has_no_way_out_until_a_turn_gives_it_one(shared: Gateway) -> None:
    session_id = uuid4()
    path = await shared.open(session_id)
    off = "HTTP/1.1 403 off for this session"
    assert await connect(path, "listed.example:443") == off
    await begin(shared, session_id, egress="allow")
    assert await connect(path, "a.example:443") == "HTTP/1.1 403 a.example is not on the allow-list"
    assert await connect(path, "listed.example:22") == "HTTP/1.1 403 port 22 is not open"
    await begin(shared, session_id, egress="allow", egress_hosts=["a.example"])
    assert await connect(path, "a.example:22") == "HTTP/1.1 403 port 22 is not open"
    await begin(shared, session_id, egress="off")
    assert await connect(path, "listed.example:443") == off


@pytest.mark.parametrize("mode", ["allow", "open"])
async def test_no_setting_opens_this_machine_or_its_network(shared: Gateway, mode: str) -> None:
    session_id = uuid4()
    path = await begin(shared, session_id, egress=mode)
    for host in ("127.0.0.1", "10.0.0.1", "169.254.169.254", "[::1]", "localhost", "0x7f.1"):
        line = await connect(path, f"{host}:80")
        assert line.split()[1] in ("400", "403"), line


async def test_every_refusal_is_a_record_and_repeated_ones_are_told_together(
    shared: Gateway,
) -> None:
    session_id = uuid4()
    path = await begin(shared, session_id, egress="allow")
    for _ in range(50):
        await connect(path, "loop.example:443")
    first = await records(shared, session_id, wait=10)
    assert [each["connections"] for each in first] == [1]
    told = await records(shared, session_id)
    assert [each["connections"] for each in told] == [1, 49]
    assert {(each["host"], each["verdict"], each["port"]) for each in told} == {
        ("loop.example", "refused", 443)
    }


async def test_what_is_held_back_is_told_before_the_next_turn(shared: Gateway) -> None:
    session_id = uuid4()
    path = await begin(shared, session_id, egress="allow")
    for _ in range(3):
        await connect(path, "loop.example:443")
    await begin(shared, session_id, egress="allow")
    await connect(path, "loop.example:443")
    told = await records(shared, session_id, wait=10)
    assert [each["connections"] for each in told] == [1, 2, 1]


async def test_another_session_is_told_nothing(shared: Gateway) -> None:
    one, other = uuid4(), uuid4()
    path = await begin(shared, one, egress="allow")
    await begin(shared, other, egress="open")
    await connect(path, "a.example:443")
    assert len(await records(shared, one)) == 1
    assert await records(shared, other) == []


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
async def test_a_restarted_gateway_lets_out_what_it_did_before(how: signal.Signals) -> None:
    async with gateway(HOLDFAST_EGRESS_ALLOW=",") as running:
        session_id = uuid4()
        path = await begin(running, session_id, egress="allow", egress_hosts=["a.example"])
        await running.end(how)
        await running.start()
        assert await connect(path, "a.example:22") == "HTTP/1.1 403 port 22 is not open"
        assert "allow-list" in await connect(path, "b.example:443")


async def test_the_port_for_clouds_is_no_proxy() -> None:
    """There a sandbox has the provider's network, and a token of the session would open this one
    to whoever finds it."""
    port = free_port()
    with_port = {"HOLDFAST_GATEWAY_PORT": str(port), "HOLDFAST_GATEWAY_SECRET": "s" * 32}
    async with gateway(**with_port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"CONNECT a.example:443 HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        async with asyncio.timeout(20):
            assert (await reader.readline()).split()[1] == b"401"
        writer.close()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("HOLDFAST_EGRESS_ALLOW", "pypi.org,*"),
        ("HOLDFAST_EGRESS_ALLOW", "10.0.0.1"),
        ("HOLDFAST_EGRESS_PORTS", "80,https"),
        ("HOLDFAST_EGRESS_PORTS", "70000"),
        ("HOLDFAST_EGRESS_TUNNELS", "0"),
    ],
)
async def test_a_setting_that_cannot_work_is_said_at_start(name: str, value: str) -> None:
    async with gateway() as running:
        await running.end()
        running.env = {name: value}
        process = await running.spawn()
        assert await process.wait() != 0
        assert name.removeprefix("HOLDFAST_").lower() in running.log
