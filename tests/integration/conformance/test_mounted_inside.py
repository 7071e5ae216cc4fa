"""A workspace that is mounted inside its sandbox, where nobody else sees the mount."""

from __future__ import annotations

import asyncio

import pytest

from contracts.errors import NotDurable
from sidecar.providers.base import Command
from sidecar.workspace.in_box import InBox
from tests.integration.conformance.conftest import Make, Subject
from tests.integration.conformance.test_durable import barrier, durable, sh
from tests.integration.conformance.ways import CLOUDS

WAYS = CLOUDS
ENGINES = ("geesefs",)


async def test_a_mount_whose_daemon_died_is_seen_and_comes_back_under_the_same_sandbox(
    subject: Subject, make: Make
) -> None:
    provider = subject.provider
    assert isinstance(provider, InBox)
    spec = subject.spec()
    sandbox = await make(spec)
    await sh(sandbox, "echo kept > kept; sync")
    await barrier(sandbox)
    assert await provider.check(spec.session_id) == ""
    await sandbox.exec(Command(["pkill", "-KILL", "-x", "geesefs"], cwd="/"))
    async with asyncio.timeout(15):
        while "died" not in await provider.check(spec.session_id):
            await asyncio.sleep(0.05)
    with pytest.raises(NotDurable):
        await barrier(sandbox)
    report = await provider.remount(spec.session_id, "its daemon died")
    assert (report.engine, report.fresh, report.lost) == ("geesefs", True, "its daemon died")
    workspace = await provider.workspace(spec.session_id)
    assert workspace is not None
    durable(sandbox).stand_on(workspace)
    assert await sh(sandbox, "cat kept; echo more > more; sync") == "kept\n"
    assert (await barrier(sandbox)).files == 2
