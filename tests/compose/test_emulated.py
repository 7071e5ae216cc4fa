"""The profile `emulated` of docker-compose.yml, with docker/emulated.env as it stands."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.compose.running import Compose, compose_stack
from tests.e2e.conftest import output, run

CLOUDS = ("e2b", "daytona", "modal")


@pytest.fixture(scope="module")
async def stack(docker: Path, sandbox_image: str, fuse: None) -> AsyncIterator[Compose]:
    async with compose_stack("docker/emulated.env") as running:
        yield running
    assert await running.left("container", "-a") == []
    assert await running.left("network") == []
    assert await running.left("volume") == []


async def boxes_of(stack: Compose, cloud: str) -> list[str]:
    """Of this stack's emulator: their names say the process that made them."""
    emulator = (await stack.compose("ps", "-q", f"emulated-{cloud}")).strip()
    pid = (await stack.run("docker", "inspect", "-f", "{{.State.Pid}}", emulator)).strip()
    listed = ("ps", "-a", "--filter", "label=holdfast.emulator", "--format", "{{.Names}}")
    names = (await stack.run("docker", *listed)).split()
    return [name for name in names if name.split(".")[2].split("-")[2] == pid]


@pytest.mark.timeout(900)
async def test_a_session_moves_over_every_emulated_cloud_and_leaves_no_box(stack: Compose) -> None:
    async with stack.client() as hf:
        told = {each.name: each for each in (await hf.capabilities()).providers}
        assert {name: told[name].reason for name in CLOUDS} == dict.fromkeys(CLOUDS, "")
        session = await hf.sessions.create(harness="pi", provider=CLOUDS[0])
        for number, cloud in enumerate(CLOUDS):
            prompt = f"run: echo {cloud} >> been.txt; cat been.txt\nsay done"
            events = await run(hf, session, prompt, provider=cloud)
            assert events[-1].type == "turn.completed", events[-1]
            assert output(events).split() == list(CLOUDS[: number + 1])
            assert len(await boxes_of(stack, cloud)) == 1, "it ran elsewhere"
        await hf.sessions.delete(session.id)
        for cloud in CLOUDS:
            assert await boxes_of(stack, cloud) == []
