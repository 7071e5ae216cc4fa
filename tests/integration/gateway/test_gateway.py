"""The gateway as a process: it is ended, started again, and guards its place."""

from __future__ import annotations

import asyncio
import os
import signal
import stat
from uuid import uuid4

import httpx
import pytest

from tests.support.gateway import GatewayProcess, ask, client_of, gateway_process, ticking


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
async def test_a_restarted_gateway_serves_the_same_sockets(how: signal.Signals) -> None:
    async with gateway_process() as running:
        paths = [await running.open() for _ in range(2)]
        (running.sockets / "notes").mkdir()
        (running.sockets / "notes" / "sock").touch()
        await running.end(how)
        await running.start()
        assert [await ask(path, "say back") for path in paths] == ["back", "back"]
        assert all(stat.S_IMODE(path.stat().st_mode) == 0o600 for path in paths)
        assert (running.sockets / "notes" / "sock").is_file()


async def test_a_closed_session_stays_closed_after_a_restart() -> None:
    session_id = uuid4()
    async with gateway_process() as running, client_of(running.control) as control:
        path = await running.open(session_id)
        await control.delete(f"/sessions/{session_id}")
        await running.end()
        await running.start()
        assert not path.exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a socket away")
async def test_a_reopened_socket_keeps_the_owner_it_was_given() -> None:
    async with gateway_process() as running:
        path = await running.open()
        os.chown(path, 4321, 4321)
        await running.end(signal.SIGKILL)
        await running.start()
        status = path.stat()
        assert (status.st_uid, status.st_gid) == (4321, 4321)
        assert stat.S_IMODE(status.st_mode) == 0o600


async def test_a_second_gateway_refuses_to_take_the_first_ones_place() -> None:
    async with gateway_process() as running:
        path = await running.open()
        second = await GatewayProcess(running.directory).spawn()
        async with asyncio.timeout(60):
            assert await second.wait() == 1
        assert "Another gateway listens" in running.log
        assert await ask(path, "say still here") == "still here"


async def test_ending_the_gateway_does_not_wait_for_running_answers() -> None:
    async with gateway_process() as running, ticking(await running.open(), 60) as ticks:
        await running.end()  # within a bound that is less than what the answer takes
        with pytest.raises(httpx.TransportError):
            await anext(ticks)
