"""Records of a session, over the gateway's control socket."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any
from uuid import uuid4

import pytest

from sidecar.gateway import records
from tests.support.gateway import Gateway, client_of, gateway


@pytest.fixture(scope="module")
async def shared() -> AsyncIterator[Gateway]:
    async with gateway() as running:
        yield running


async def test_records_are_read_and_taken_through_the_control_socket() -> None:
    session_id = uuid4()
    async with gateway() as running, client_of(running.control) as client:
        url = f"/sessions/{session_id}/records"
        assert (await client.get(url)).status_code == 404
        await running.open(session_id)
        found = (await client.get(url, params={"wait": 0})).json()
        assert (found["records"], found["open"]) == ([], 0)
        assert (await client.delete(url, params={"upto": found["last"]})).status_code == 200
        assert (await client.delete(f"/sessions/{session_id}")).json()["closed"]
        assert list((running.sockets / records.DIRECTORY).iterdir()) == []


@pytest.mark.parametrize(
    ("method", "path", "more"),
    [
        ("PUT", "", {"json": {"budget": {"tokens": 0}}}),
        ("PUT", "", {"json": {"budget": {"cost": -1}}}),
        ("PUT", "", {"json": {"colour": "red"}}),
        ("GET", "/records", {"params": {"after": -1}}),
        ("GET", "/records", {"params": {"wait": 3600}}),
        ("DELETE", "/records", {}),
    ],
)
async def test_what_makes_no_sense_is_refused_with_its_place(
    shared: Gateway, method: str, path: str, more: dict[str, Any]
) -> None:
    session_id = uuid4()
    async with client_of(shared.control) as client:
        await shared.open(session_id)
        answer = await client.request(method, f"/sessions/{session_id}{path}", **more)
        assert answer.status_code == 400
        assert answer.json()["error"]["code"] == "invalid_input"
        assert "UUID" not in answer.json()["error"]["message"]
