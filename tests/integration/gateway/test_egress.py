"""Egress of a gateway process that is started again, or cannot start."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path
from uuid import uuid4

import pytest

from tests.support.gateway import GatewayProcess, begin_turn, connect, gateway_process


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
async def test_a_restarted_gateway_lets_out_what_it_did_before(how: signal.Signals) -> None:
    async with gateway_process(HOLDFAST_EGRESS_ALLOW=",") as running:
        session_id = uuid4()
        path = await begin_turn(running, session_id, egress="allow", egress_hosts=["a.example"])
        await running.end(how)
        await running.start()
        assert await connect(path, "a.example:22") == (403, "egress_port")
        assert await connect(path, "b.example:443") == (403, "egress_host")


async def test_a_setting_that_cannot_work_keeps_the_process_from_starting(short_dir: Path) -> None:
    running = GatewayProcess(short_dir, {"HOLDFAST_EGRESS_PORTS": "70000"})
    process = await running.spawn()
    async with asyncio.timeout(60):
        assert await process.wait() != 0
    assert "egress_ports" in running.log
