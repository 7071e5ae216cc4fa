"""The provider contract, on every provider that is there."""

from __future__ import annotations

import asyncio
import time
from uuid import uuid4

import pytest

from contracts.errors import FileMissing, SandboxGone, Unreachable, Unsupported
from sidecar.providers.base import TIMED_OUT, Command, Provider, Sandbox, SandboxSpec, Status
from tests.services import until


async def until_running(sandbox: Sandbox, naps: list[str]) -> None:
    """Wait for exactly these `sleep`s; a process is there for a moment before it is the program."""
    async with asyncio.timeout(10):
        while True:
            found = [p.argv[:2] for p in await sandbox.processes()]
            if sorted(found) == [("sleep", nap) for nap in naps]:
                return
            await asyncio.sleep(0.01)


async def test_exit_code_is_a_result_not_an_error(sandbox: Sandbox) -> None:
    result = await sandbox.exec(Command(["sh", "-c", "echo out; echo err >&2; exit 3"]))
    assert (result.exit_code, result.stdout, result.stderr) == (3, b"out\n", b"err\n")


async def test_a_missing_command_is_127(sandbox: Sandbox) -> None:
    assert (await sandbox.exec(Command(["no-such-command"]))).exit_code == 127


async def test_a_timeout_is_a_result_and_leaves_no_process(sandbox: Sandbox) -> None:
    stubborn = "echo early; (setsid sleep 600 &); trap '' TERM; sleep 600"
    started = time.monotonic()
    result = await sandbox.exec(Command(["sh", "-c", stubborn], timeout=0.5))
    assert result.exit_code == TIMED_OUT
    assert result.stdout == b"early\n"
    assert time.monotonic() - started < 10, "it waited for the processes it was to kill"
    assert await sandbox.processes() == []


async def test_a_command_that_leaves_something_in_the_background_still_ends(
    sandbox: Sandbox,
) -> None:
    result = await sandbox.exec(Command(["sh", "-c", "sleep 600 & echo done"], timeout=60))
    assert (result.exit_code, result.stdout) == (0, b"done\n")
    assert await sandbox.processes() == []


async def test_cancellation_wins_over_a_later_timeout_and_leaves_no_process(
    sandbox: Sandbox,
) -> None:
    running = asyncio.ensure_future(sandbox.exec(Command(["sleep", "600"], timeout=30)))
    async with asyncio.timeout(10):
        while not await sandbox.processes():
            await asyncio.sleep(0.01)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert await sandbox.processes() == []


async def test_cwd_and_env_hold_for_one_call(sandbox: Sandbox) -> None:
    show = ["sh", "-c", 'pwd; echo "$MARK"']
    first = await sandbox.exec(Command(show, cwd="/tmp", env={"MARK": "here"}))
    second = await sandbox.exec(Command(show))
    assert first.stdout == b"/tmp\nhere\n"
    assert second.stdout == b"/session/workspace\n\n"


async def test_stdin_and_a_line_of_a_megabyte(sandbox: Sandbox) -> None:
    line = b"x" * 1_000_000 + b"\n"
    result = await sandbox.exec(Command(["cat"], stdin=line))
    assert result.stdout == line


async def test_files_are_written_whole_and_read_back(sandbox: Sandbox) -> None:
    data = bytes(range(256)) * 10_000
    await sandbox.write("/home/agent/a/b/c.bin", data, 0o640)
    assert await sandbox.read("/home/agent/a/b/c.bin") == data
    mode = await sandbox.exec(Command(["stat", "-c", "%a", "/home/agent/a/b/c.bin"]))
    assert mode.stdout == b"640\n"


async def test_a_missing_file_is_told_apart(sandbox: Sandbox) -> None:
    with pytest.raises(FileMissing):
        await sandbox.read("/home/agent/nothing")


async def test_a_link_planted_in_home_leads_nowhere_on_the_host(
    sandbox: Sandbox, spec: SandboxSpec
) -> None:
    assert spec.session_dir is not None
    target = spec.session_dir.parent / "host-file"
    target.write_text("untouched")
    await sandbox.exec(Command(["ln", "-s", str(target.parent), "/home/agent/planted"]))
    with pytest.raises(Unreachable):
        await sandbox.write("/home/agent/planted/host-file", b"overwritten")
    assert target.read_text() == "untouched"


async def test_create_is_idempotent_by_key(provider: Provider, spec: SandboxSpec) -> None:
    one, two = await asyncio.gather(provider.create(spec), provider.create(spec))
    assert one.id == two.id
    assert [info.sandbox_id async for info in provider.list({})] == [one.id]


async def test_list_is_by_label(provider: Provider, spec: SandboxSpec) -> None:
    sandbox = await provider.create(spec)
    assert [i.sandbox_id async for i in provider.list({"session": spec.session_id})] == [sandbox.id]
    assert [i.sandbox_id async for i in provider.list({"session": str(uuid4())})] == []


async def test_attach_after_a_restart_finds_the_same_processes(
    provider: Provider, sandbox: Sandbox
) -> None:
    await sandbox.spawn(Command(["sleep", "600"]))
    again = await provider.attach(sandbox.id)
    await until_running(again, ["600"])


async def test_destroy_twice_and_gone_is_said_by_the_control_plane(
    provider: Provider, sandbox: Sandbox
) -> None:
    assert await provider.status(sandbox.id) is Status.RUNNING
    assert await provider.destroy(sandbox.id) is True
    assert await provider.destroy(sandbox.id) is False
    assert await provider.status(sandbox.id) is Status.GONE
    with pytest.raises(SandboxGone):
        await provider.attach(sandbox.id)
    with pytest.raises(Unreachable):
        await sandbox.exec(Command(["true"]))


async def test_processes_can_be_killed_one_by_one(sandbox: Sandbox) -> None:
    for seconds in ("601", "602"):
        await sandbox.spawn(Command(["sleep", seconds]))
    await until_running(sandbox, ["601", "602"])
    victim = [p for p in await sandbox.processes() if "601" in p.argv]
    await sandbox.kill(victim)
    assert [p.argv[1] for p in await sandbox.processes()] == ["602"]


async def test_a_port_that_is_not_carried_is_refused(sandbox: Sandbox) -> None:
    assert sandbox.endpoint(2468).socket is not None
    with pytest.raises(Unsupported):
        sandbox.endpoint(3000)


async def test_a_sandbox_killed_in_the_middle_of_an_exec_is_a_prompt_result(
    provider: Provider, sandbox: Sandbox
) -> None:
    running = asyncio.ensure_future(sandbox.exec(Command(["sleep", "600"], timeout=60)))
    async with asyncio.timeout(10):
        while not await sandbox.processes():
            await asyncio.sleep(0.01)
    await provider.destroy(sandbox.id)
    await until(running.done, "the exec returned")
    # it depends on who is faster: the news of the process's end, or of the sandbox's
    if running.exception() is None:
        assert running.result().exit_code == 137
    else:
        assert isinstance(running.exception(), Unreachable)
