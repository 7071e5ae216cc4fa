"""What requests to a model use, of a gateway that is killed."""

from __future__ import annotations

import asyncio
import json
import signal
from pathlib import Path
from uuid import uuid4

import httpx
import pytest

from tests.support.gateway import GatewayProcess, until
from tests.support.metering import ANTHROPIC, MESSAGES, TOOLS, metered_process, sse


async def test_a_gateway_that_is_killed_says_what_it_was_in_the_middle_of() -> None:
    async with metered_process() as (running, here):
        turn = str(uuid4())
        await here.agree(turn_id=turn)
        here.vendor.body = sse(*ANTHROPIC)
        here.vendor.stop_after = 20
        body = {"model": "claude-x", "tools": TOOLS}
        begun = asyncio.ensure_future(here.client.post(MESSAGES, json=body))
        await until(lambda: len(here.vendor.requests) == 1)
        await running.end(signal.SIGKILL)
        with pytest.raises(httpx.TransportError):
            await begun
        await running.start()
        [record] = await here.records()
        assert (record["kind"], record["turn_id"]) == ("model.lost", turn)
        assert (record["model"], record["side"]) == ("claude-x", False)


async def test_what_was_spent_is_known_to_the_next_gateway() -> None:
    async with metered_process() as (running, here):
        await here.agree(budget={"cost": 0.001})
        here.vendor.body = sse(*ANTHROPIC)
        body = {"model": "claude-sonnet-4-5-20250929"}
        assert (await here.client.post(MESSAGES, json=body)).status_code == 200
        await running.end(signal.SIGKILL)
        await running.start()
        refused = await here.client.post(MESSAGES, json=body)
        assert refused.status_code == 400
        assert "$0.0015 of $0.001" in refused.json()["error"]["message"]


async def test_prices_that_cannot_be_read_end_the_process_with_a_message(short_dir: Path) -> None:
    table = short_dir / "prices.json"
    table.write_text(json.dumps({"models": {"m": {"input": -1, "output": 1}}}))
    running = GatewayProcess(short_dir, {"HOLDFAST_MODEL_PRICES": str(table)})
    process = await running.spawn()
    async with asyncio.timeout(60):
        assert await process.wait() == 1
    assert "HOLDFAST_MODEL_PRICES" in running.log
    assert "Traceback" not in running.log
