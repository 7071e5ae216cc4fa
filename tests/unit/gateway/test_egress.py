"""Egress in the real gateway: its terms, its records, its settings. Nothing here connects:
what is asked for is refused before."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest
from pydantic import ValidationError

from tests.support.gateway import (
    Gateway,
    ServedGateway,
    begin_turn,
    client_of,
    connect,
    gateway,
    port_settings,
)
from tests.support.services import free_port


@pytest.fixture(scope="module")
async def shared() -> AsyncIterator[Gateway]:
    async with gateway(HOLDFAST_EGRESS_ALLOW="listed.example,127.0.0.1.nip.example") as running:
        yield running


async def records(running: Gateway, session_id: UUID, **how: Any) -> list[dict[str, Any]]:
    async with client_of(running.control) as client:
        answer = await client.get(f"/sessions/{session_id}/records", params=how)
    return [each["data"] for each in answer.json()["records"] if each["kind"] == "egress"]


async def test_a_session_has_no_way_out_until_a_turn_gives_it_one(shared: Gateway) -> None:
    session_id = uuid4()
    path = await shared.open(session_id)
    off = (403, "egress_off")
    assert await connect(path, "listed.example:443") == off
    await begin_turn(shared, session_id, egress="allow")
    assert await connect(path, "a.example:443") == (403, "egress_host")
    assert await connect(path, "listed.example:22") == (403, "egress_port")
    await begin_turn(shared, session_id, egress="allow", egress_hosts=["a.example"])
    assert await connect(path, "a.example:22") == (403, "egress_port")
    await begin_turn(shared, session_id, egress="off")
    assert await connect(path, "listed.example:443") == off


@pytest.mark.parametrize("mode", ["allow", "open"])
async def test_no_setting_opens_this_machine_or_its_network(shared: Gateway, mode: str) -> None:
    session_id = uuid4()
    path = await begin_turn(shared, session_id, egress=mode)
    for host in ("127.0.0.1", "10.0.0.1", "169.254.169.254", "[::1]", "localhost", "0x7f.1"):
        status, code = await connect(path, f"{host}:80")
        assert status in (400, 403), (host, code)


async def test_every_refusal_is_a_record_and_repeated_ones_are_told_together(
    shared: Gateway,
) -> None:
    session_id = uuid4()
    path = await begin_turn(shared, session_id, egress="allow")
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
    path = await begin_turn(shared, session_id, egress="allow")
    for _ in range(3):
        await connect(path, "loop.example:443")
    await begin_turn(shared, session_id, egress="allow")
    await connect(path, "loop.example:443")
    told = await records(shared, session_id, wait=10)
    assert [each["connections"] for each in told] == [1, 2, 1]


async def test_another_session_is_told_nothing(shared: Gateway) -> None:
    one, other = uuid4(), uuid4()
    path = await begin_turn(shared, one, egress="allow")
    await begin_turn(shared, other, egress="open")
    await connect(path, "a.example:443")
    assert len(await records(shared, one)) == 1
    assert await records(shared, other) == []


async def test_the_port_for_clouds_is_no_proxy() -> None:
    """There a sandbox has the provider's network, and a token of the session would open this one
    to whoever finds it."""
    port = free_port()
    async with gateway(**port_settings(port)):
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
def test_a_setting_that_cannot_work_is_said_at_start(name: str, value: str, tmp_path: Path) -> None:
    with pytest.raises(ValidationError, match=name.removeprefix("HOLDFAST_").lower()):
        ServedGateway(tmp_path, {name: value}).settings()
