"""A frozen sandbox stands still, and goes on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from sidecar.providers.base import Command, Provider, Sandbox
from tests.integration.conformance.conftest import Subject

WITHIN = 15.0
COUNTER = "/tmp/counter"
COUNT = f"n=0; while :; do n=$((n+1)); echo $n > {COUNTER}.new; mv {COUNTER}.new {COUNTER}; done"


async def counted(sandbox: Sandbox) -> int:
    shown = await sandbox.exec(Command(["sh", "-c", f"cat {COUNTER} || echo 0"], cwd="/"))
    return int(shown.stdout)


async def until_counted(sandbox: Sandbox, more_than: int) -> None:
    async with asyncio.timeout(WITHIN):
        while await counted(sandbox) <= more_than:
            await asyncio.sleep(0.02)


@pytest.fixture
async def counting(provider: Provider, sandbox: Sandbox) -> AsyncIterator[Sandbox]:
    if not provider.capabilities.freeze:
        pytest.skip(f"{provider.name} declares that it cannot freeze")
    await sandbox.spawn(Command(["sh", "-c", COUNT], cwd="/"))
    await until_counted(sandbox, 0)
    yield sandbox
    await sandbox.kill(await sandbox.processes())
    await sandbox.exec(Command(["rm", "-f", COUNTER], cwd="/"))


async def test_a_frozen_sandbox_stands_still_and_goes_on(counting: Sandbox) -> None:
    await counting.freeze()
    try:
        stood = await counted(counting)
        # what is executed in a frozen sandbox runs
        nap = await counting.exec(Command(["sh", "-c", "sleep 0.3; echo here"], cwd="/"))
        assert (nap.exit_code, nap.stdout) == (0, b"here\n")
        assert await counted(counting) == stood
        await counting.write("/home/agent/.frozen/file", b"written")
        assert await counting.pack([".frozen"], [])
        assert await counted(counting) == stood
    finally:
        await counting.thaw()
    await until_counted(counting, stood)


async def test_a_frozen_sandbox_can_be_attached_to(subject: Subject, counting: Sandbox) -> None:
    """By a sidecar that comes after one which died in the middle of a barrier."""
    await counting.freeze()
    try:
        stood = await counted(counting)
        async with subject.another() as later:
            found = await later.attach(counting.id)
            assert (await found.exec(Command(["echo", "here"], cwd="/"))).stdout == b"here\n"
    finally:
        await counting.thaw()
    await until_counted(counting, stood)
    await subject.provider.attach(counting.id)  # the workspace is the first one's again
