"""How sandboxes come to be, are found again, and end."""

from __future__ import annotations

import asyncio
from uuid import uuid4

import pytest

from contracts.errors import SandboxGone, Unreachable
from sidecar.providers.base import Command, Provider, Sandbox, SandboxSpec, Status
from tests.integration.conformance.conftest import Make, Subject, again
from tests.integration.conformance.test_exec import until_there
from tests.support.services import until


async def listed(provider: Provider, session: str) -> list[str]:
    return [info.sandbox_id async for info in provider.list({"session": session})]


async def test_there_is_no_trouble(provider: Provider) -> None:
    assert await provider.trouble() == ""


async def test_create_is_idempotent_by_key(subject: Subject, provider: Provider) -> None:
    spec = subject.spec()
    one, two = await asyncio.gather(subject.bare.create(spec), subject.bare.create(spec))
    assert one.id == two.id
    assert (await subject.bare.create(spec)).id == one.id
    assert await listed(provider, spec.session_id) == [one.id]
    assert await provider.destroy(one.id)


async def test_a_new_key_of_the_same_session_is_another_sandbox(
    subject: Subject, provider: Provider, make: Make
) -> None:
    spec = subject.spec()
    one, two = await make(spec), await make(again(spec, 2))
    assert one.id != two.id
    assert sorted(await listed(provider, spec.session_id)) == sorted([one.id, two.id])
    assert two.labels["epoch"] == "2"


async def test_list_is_by_label_and_of_this_stack_alone(
    subject: Subject, provider: Provider, sandbox: Sandbox, shared_spec: SandboxSpec
) -> None:
    (found,) = [i async for i in provider.list({"session": shared_spec.session_id})]
    assert found.sandbox_id == sandbox.id
    assert found.labels["session"] == shared_spec.session_id
    assert found.status is Status.RUNNING
    assert await listed(provider, str(uuid4())) == []
    assert sandbox.id in [info.sandbox_id async for info in provider.list({})]
    if subject.stranger is not None:
        async with subject.stranger() as other:
            assert [info async for info in other.list({})] == []


async def test_attach_after_a_restart_finds_the_same_processes(
    subject: Subject, sandbox: Sandbox
) -> None:
    await sandbox.spawn(Command(["sleep", "600"]))
    async with subject.another() as later:
        found = await later.attach(sandbox.id)
        assert (found.id, dict(found.labels)) == (sandbox.id, dict(sandbox.labels))
        await until_there(found, "600")
        await found.kill(await found.processes())
    # the first sidecar has it no longer, and takes it back
    assert (await subject.provider.attach(sandbox.id)).id == sandbox.id
    assert await sandbox.processes() == []


async def test_destroy_twice_and_gone_is_said_by_the_control_plane(
    provider: Provider, make: Make
) -> None:
    sandbox = await make()
    assert await provider.status(sandbox.id) is Status.RUNNING
    assert await provider.destroy(sandbox.id) is True
    assert await provider.destroy(sandbox.id) is False
    assert await provider.status(sandbox.id) is Status.GONE
    with pytest.raises(SandboxGone):
        await provider.attach(sandbox.id)
    with pytest.raises(Unreachable):
        await sandbox.exec(Command(["true"]))
    await sandbox.thaw()  # one that is gone has nothing to thaw
    with pytest.raises(SandboxGone):
        await sandbox.freeze()


async def test_a_sandbox_killed_in_the_middle_of_an_exec_is_a_prompt_result(
    provider: Provider, make: Make
) -> None:
    sandbox = await make()
    running = asyncio.ensure_future(sandbox.exec(Command(["sleep", "600"], timeout=60)))
    await until_there(sandbox, "600")
    await provider.destroy(sandbox.id)
    await until(running.done, "the exec returned")
    # it depends on who is faster: the news of the process's end, or of the sandbox's
    if running.exception() is None:
        assert running.result().exit_code == 137
    else:
        assert isinstance(running.exception(), Unreachable)


async def test_keepalive_keeps_a_living_sandbox(provider: Provider, sandbox: Sandbox) -> None:
    await sandbox.keepalive()
    assert await provider.status(sandbox.id) is Status.RUNNING
