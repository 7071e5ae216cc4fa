"""Sandboxes that wait for the next turn: as long and as many as the settings say, and no more; and
what is left of them when their time or their stack's is over."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from uuid import UUID

import pytest

from client import Holdfast
from tests.e2e.conftest import (
    UNTIL_LET_GO,
    RunningStack,
    let_go,
    of_type,
    run,
    wait_for_end,
    wait_for_event,
)
from tests.e2e.test_recovery import crash
from tests.support.containers import containers_of, docker
from tests.support.light_agent.tree import LIGHT
from tests.support.running_stack import running_stack
from tests.support.services import short_directory


@pytest.fixture(scope="module")
async def none_waits(fuse: None, light_settings: dict[str, str]) -> AsyncIterator[RunningStack]:
    settings = {**light_settings, "HOLDFAST_WARM_SECONDS": "0"}
    with short_directory() as directory:
        async with running_stack(directory / "data", settings) as stack:
            yield stack


@pytest.fixture(scope="module")
async def one_waits(fuse: None, light_settings: dict[str, str]) -> AsyncIterator[RunningStack]:
    """The last test stops it."""
    settings = {**light_settings, "HOLDFAST_WARM_SANDBOXES": "1"}
    with short_directory() as directory:
        async with running_stack(directory / "data", settings) as stack:
            yield stack


async def living(hf: Holdfast) -> list[UUID]:
    return [box.session_id for box in (await hf.sandboxes()).sandboxes]


async def test_none_waits_when_the_time_is_zero(none_waits: RunningStack) -> None:
    async with Holdfast(none_waits.url, none_waits.token) as hf:
        session = await hf.sessions.create(**LIGHT)
        events = await run(hf, session, "remember the colour teal")
        assert of_type(events, "sandbox.destroyed")
        assert (await hf.sandboxes()).sandboxes == []
        assert (await hf.leaks()).leaks == []
        again = await run(hf, session, "recall")
        assert of_type(again, "resume")[0].rung == "native"


async def test_nothing_is_left_of_a_container_when_its_time_is_over(
    none_waits: RunningStack, sandbox_image: str
) -> None:
    async with Holdfast(none_waits.url, none_waits.token) as hf:
        made = await hf.sessions.create(**LIGHT, provider="docker")
        turn = await hf.turns.start(made.id, f"run: {UNTIL_LET_GO}")
        await wait_for_event(hf, turn, "resume")
        (container,) = containers_of(none_waits.data_dir)
        (shown,) = docker("inspect", container)
        volumes = {mount["Name"] for mount in shown["Mounts"] if mount["Type"] == "volume"}
        await let_go(hf, made)
        await wait_for_event(hf, turn, "sandbox.destroyed")
        await wait_for_end(hf, turn)
        assert containers_of(none_waits.data_dir) == []
        assert volumes.isdisjoint(docker("volume", "ls", "-q"))


async def test_at_most_so_many_wait_and_the_oldest_is_ended(one_waits: RunningStack) -> None:
    async with Holdfast(one_waits.url, one_waits.token) as hf:
        first, second = [await hf.sessions.create(**LIGHT) for _ in range(2)]
        await run(hf, first, "say one")
        await run(hf, second, "say two")

        async with asyncio.timeout(20):
            while await living(hf) != [second.id]:
                await asyncio.sleep(0.1)
        assert of_type(await run(hf, second, "say three"), "resume")[0].rung == "warm"
        assert (await hf.leaks()).leaks == []


async def test_a_stack_that_stops_or_crashes_leaves_no_container(
    one_waits: RunningStack, sandbox_image: str
) -> None:
    async with Holdfast(one_waits.url, one_waits.token) as hf:
        made = await hf.sessions.create(**LIGHT, provider="docker")
        turn = await hf.turns.start(made.id, "wait 60 seconds")
        await wait_for_event(hf, turn, "resume")
        assert len(containers_of(one_waits.data_dir)) == 1
        await crash(one_waits, "sidecar")
        await wait_for_event(hf, turn, "run.adopted")
        await hf.turns.cancel(made.id, turn.id)
        await wait_for_end(hf, turn)
        await hf.sessions.delete(made.id)
        assert containers_of(one_waits.data_dir) == []
        again = await hf.sessions.create(**LIGHT, provider="docker")
        await run(hf, again, "say hello")
        assert len(containers_of(one_waits.data_dir)) == 1
    await one_waits.command("down")
    assert containers_of(one_waits.data_dir) == []
