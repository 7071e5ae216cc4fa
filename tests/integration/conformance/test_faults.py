"""Clouds that fail in the middle: what is unclear is never taken for an end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from contracts.errors import SandboxError, SandboxGone, Unreachable
from sidecar.providers.base import Command, Provider, Sandbox, SandboxSpec, Status
from tests.integration.conformance import ways
from tests.integration.conformance.conftest import Make, Subject, again
from tests.integration.conformance.test_exec import until_there
from tests.integration.conformance.test_freeze import COUNT, counted, until_counted
from tests.integration.conformance.test_lives import listed
from tests.integration.conformance.ways import CLOUDS, Levers

WAYS = CLOUDS
ENGINES = ("bare",)
FAULTS = ("503", "reset", "hang")
WITHIN = 60.0


@pytest.fixture
async def hurried(subject: Subject) -> AsyncIterator[Provider]:
    """The provider, for calls that are to fail."""
    assert subject.with_patience is not None
    async with subject.with_patience(ways.hurried(subject.way)) as provider:
        yield provider


@pytest.fixture
async def curt(subject: Subject) -> AsyncIterator[Provider]:
    """The provider, of whose sandboxes a command is to fail."""
    assert subject.with_patience is not None
    patience = replace(ways.WIRES[subject.way].patience, exec_grace=0)
    async with subject.with_patience(patience) as provider:
        yield provider


@pytest.mark.parametrize("fault", FAULTS)
async def test_a_control_plane_that_fails_in_attach_is_unreachable_and_makes_no_second_box(
    provider: Provider,
    hurried: Provider,
    sandbox: Sandbox,
    shared_spec: SandboxSpec,
    levers: Levers,
    fault: str,
) -> None:
    await sandbox.spawn(Command(["sleep", "600"]))
    await until_there(sandbox, "600")
    await levers.break_control(fault)
    async with asyncio.timeout(WITHIN):
        with pytest.raises(Unreachable):
            await hurried.attach(sandbox.id)
    assert await levers.mend() > 0
    assert await listed(provider, shared_spec.session_id) == [sandbox.id]
    again_there = await provider.attach(sandbox.id)
    assert again_there.id == sandbox.id
    await until_there(again_there, "600")
    await again_there.kill(await again_there.processes())


@pytest.mark.parametrize("fault", [*FAULTS, "401", "429"])
async def test_a_control_plane_that_fails_in_status_knows_nothing(
    provider: Provider, hurried: Provider, sandbox: Sandbox, levers: Levers, fault: str
) -> None:
    await levers.break_control(fault)
    assert await hurried.status(sandbox.id) is Status.UNKNOWN
    assert await levers.mend() > 0
    assert await provider.status(sandbox.id) is Status.RUNNING


@pytest.mark.parametrize("fault", [*FAULTS, "401", "429"])
async def test_a_port_that_fails_in_exec_is_unreachable_while_the_box_runs(
    provider: Provider, curt: Provider, sandbox: Sandbox, levers: Levers, fault: str
) -> None:
    """A 401 too: that is how Daytona speaks of a box that is deleted, and of others."""
    failing = await curt.attach(sandbox.id)
    await levers.break_data(fault)
    with pytest.raises(Unreachable):
        await failing.exec(Command(["true"], timeout=1))
    assert await provider.status(sandbox.id) is Status.RUNNING
    assert await levers.mend() > 0
    assert (await sandbox.exec(Command(["true"]))).exit_code == 0


@pytest.mark.parametrize("fault", FAULTS)
async def test_a_port_that_fails_in_attach_is_unreachable_and_ends_nothing_in_the_box(
    provider: Provider,
    hurried: Provider,
    sandbox: Sandbox,
    shared_spec: SandboxSpec,
    levers: Levers,
    fault: str,
) -> None:
    await sandbox.spawn(Command(["sleep", "600"]))
    await until_there(sandbox, "600")
    await levers.break_data(fault)
    with pytest.raises(Unreachable):
        await hurried.attach(sandbox.id)
    assert await levers.mend() > 0
    assert await listed(provider, shared_spec.session_id) == [sandbox.id]
    again_there = await provider.attach(sandbox.id)
    await until_there(again_there, "600")
    await again_there.kill(await again_there.processes())


@pytest.mark.parametrize("fault", ["", "hang"], ids=["well", "hang"])
async def test_a_deleted_box_is_gone_whatever_its_port_says_and_gets_a_successor(
    subject: Subject,
    provider: Provider,
    curt: Provider,
    make: Make,
    levers: Levers,
    fault: str,
) -> None:
    spec = subject.spec()
    sandbox = await make(spec)
    failing = await curt.attach(sandbox.id)
    await levers.delete(sandbox.id)
    if fault:
        await levers.break_data(fault)
    with pytest.raises(Unreachable):
        await failing.exec(Command(["true"], timeout=1))
    assert await provider.status(sandbox.id) is Status.GONE
    with pytest.raises(SandboxGone):
        await provider.attach(sandbox.id)
    await levers.mend()
    successor = await make(again(spec, 2))
    assert successor.id != sandbox.id
    assert await listed(provider, spec.session_id) == [successor.id]


@pytest.mark.parametrize("fault", ["503", "hang"])
async def test_an_unclear_destroy_is_an_error_and_can_be_tried_again(
    subject: Subject,
    provider: Provider,
    hurried: Provider,
    make: Make,
    levers: Levers,
    fault: str,
) -> None:
    spec = subject.spec()
    sandbox = await make(spec)
    await levers.break_control(fault)
    with pytest.raises(SandboxError):
        await hurried.destroy(sandbox.id)
    await levers.mend()
    await provider.destroy(sandbox.id)
    assert await provider.status(sandbox.id) is Status.GONE
    assert await listed(provider, spec.session_id) == []


async def test_a_box_whose_lease_has_ended_is_attached_to_again(
    subject: Subject, provider: Provider, make: Make, levers: Levers
) -> None:
    can = provider.capabilities
    if can.max_lifetime is not None:
        pytest.skip(f"{provider.name} declares max_lifetime: its boxes end for good")
    spec = subject.spec()
    sandbox = await make(spec)
    await sandbox.write("/home/agent/kept", b"on its disk")
    await sandbox.spawn(Command(["sh", "-c", COUNT], cwd="/"))
    await until_counted(sandbox, 0)
    await levers.end_lease(sandbox.id)
    stood = Status.SUSPENDED if can.suspend else Status.STOPPED
    assert await provider.status(sandbox.id) is stood
    found = await provider.attach(sandbox.id)
    assert found.id == sandbox.id
    assert await provider.status(sandbox.id) is Status.RUNNING
    assert await found.read("/home/agent/kept") == b"on its disk"
    if can.suspend:
        await until_counted(found, await counted(found))
    else:
        assert await found.processes() == []
    assert await listed(provider, spec.session_id) == [sandbox.id]


async def test_a_box_at_the_end_of_its_lifetime_is_gone(
    provider: Provider, make: Make, levers: Levers
) -> None:
    if provider.capabilities.max_lifetime is None:
        pytest.skip(f"{provider.name} declares no max_lifetime: its boxes are kept")
    sandbox = await make()
    await levers.end_lease(sandbox.id)
    assert await provider.status(sandbox.id) is Status.GONE
    with pytest.raises(SandboxGone):
        await provider.attach(sandbox.id)
