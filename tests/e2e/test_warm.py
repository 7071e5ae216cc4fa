"""Sandboxes that wait for the next turn: as long and as many as the settings say, and no more."""

from __future__ import annotations

import asyncio
from uuid import UUID

from client import Holdfast
from tests.e2e.conftest import of_type, run
from tests.support.running_stack import running_stack
from tests.support.services import short_directory


async def living(hf: Holdfast) -> list[UUID]:
    return [box.session_id for box in (await hf.sandboxes()).sandboxes]


async def test_at_most_so_many_wait_and_the_oldest_is_ended(fuse: None) -> None:
    with short_directory() as directory:
        settings = {"HOLDFAST_WARM_SANDBOXES": "1"}
        async with (
            running_stack(directory / "data", settings) as stack,
            Holdfast(stack.url, stack.token) as hf,
        ):
            first, second = [await hf.sessions.create(harness="pi") for _ in range(2)]
            await run(hf, first, "say one")
            await run(hf, second, "say two")

            async with asyncio.timeout(20):
                while await living(hf) != [second.id]:
                    await asyncio.sleep(0.1)
            assert of_type(await run(hf, second, "say three"), "resume")[0].rung == "warm"
            assert (await hf.leaks()).leaks == []


async def test_none_waits_when_the_time_is_zero(fuse: None) -> None:
    with short_directory() as directory:
        settings = {"HOLDFAST_WARM_SECONDS": "0"}
        async with (
            running_stack(directory / "data", settings) as stack,
            Holdfast(stack.url, stack.token) as hf,
        ):
            session = await hf.sessions.create(harness="pi")
            events = await run(hf, session, "remember the colour teal")
            assert of_type(events, "sandbox.destroyed")
            assert (await hf.sandboxes()).sandboxes == []
            assert (await hf.leaks()).leaks == []
            again = await run(hf, session, "recall")
            assert of_type(again, "resume")[0].rung == "native"
