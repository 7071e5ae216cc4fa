"""Commands in a sandbox, the same on every provider."""

from __future__ import annotations

import asyncio
import time

import pytest

from sidecar.providers.base import TIMED_OUT, Command, Sandbox

WITHIN = 15.0


async def until_there(sandbox: Sandbox, *naps: str) -> None:
    """Wait for exactly these `sleep`s; a process is there for a moment before it is the program."""
    async with asyncio.timeout(WITHIN):
        while True:
            found = sorted(process.argv[:2] for process in await sandbox.processes())
            if found == sorted(("sleep", nap) for nap in naps):
                return
            await asyncio.sleep(0.02)


async def test_exit_code_is_a_result_not_an_error(sandbox: Sandbox) -> None:
    result = await sandbox.exec(Command(["sh", "-c", "echo out; echo err >&2; exit 3"]))
    assert (result.exit_code, result.stdout, result.stderr) == (3, b"out\n", b"err\n")


async def test_a_missing_command_is_127(sandbox: Sandbox) -> None:
    assert (await sandbox.exec(Command(["no-such-command"]))).exit_code == 127


async def test_a_command_that_is_killed_has_the_shells_exit_code(sandbox: Sandbox) -> None:
    assert (await sandbox.exec(Command(["sh", "-c", "kill -KILL $$"]))).exit_code == 137


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
    await until_there(sandbox, "600")
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    await until_there(sandbox)


async def test_cwd_and_env_hold_for_one_call(sandbox: Sandbox) -> None:
    show = ["sh", "-c", 'pwd; echo "$MARK"']
    first = await sandbox.exec(Command(show, cwd="/tmp", env={"MARK": "here"}))
    second = await sandbox.exec(Command(show))
    assert first.stdout == b"/tmp\nhere\n"
    assert second.stdout == b"/session/workspace\n\n"


async def test_everybody_is_the_agent_and_at_home(sandbox: Sandbox) -> None:
    shown = await sandbox.exec(Command(["sh", "-c", 'echo "$HOME"; id -u; touch ~/.mine'], cwd="/"))
    home, uid = shown.stdout.split()
    assert (shown.exit_code, home) == (0, b"/home/agent")
    assert uid != b"0"


async def test_stdin_and_a_line_of_a_megabyte(sandbox: Sandbox) -> None:
    line = b"x" * 1_000_000 + b"\n"
    result = await sandbox.exec(Command(["cat"], stdin=line))
    assert result.stdout == line


async def test_output_of_any_bytes_arrives_as_it_was(sandbox: Sandbox) -> None:
    data = b"\n\n" + bytes(range(256)) * 1000
    result = await sandbox.exec(Command(["sh", "-c", "cat; printf '\\377\\n' >&2"], stdin=data))
    assert (result.stdout, result.stderr) == (data, b"\xff\n")


async def test_a_command_that_does_not_read_its_input_is_no_error(sandbox: Sandbox) -> None:
    assert (await sandbox.exec(Command(["true"], stdin=bytes(4 << 20)))).exit_code == 0


async def test_many_at_once_do_not_mix(sandbox: Sandbox) -> None:
    commands = [Command(["sh", "-c", f"sleep 0.1; echo {n}"]) for n in range(5)]
    results = await asyncio.gather(*map(sandbox.exec, commands))
    assert [result.stdout for result in results] == [b"%d\n" % n for n in range(5)]


async def test_a_spawned_process_outlives_the_call_and_is_killed_one_by_one(
    sandbox: Sandbox,
) -> None:
    for seconds in ("601", "602"):
        await sandbox.spawn(Command(["sleep", seconds]))
    await until_there(sandbox, "601", "602")
    await sandbox.kill([p for p in await sandbox.processes() if "601" in p.argv])
    assert [p.argv[1] for p in await sandbox.processes()] == ["602"]
    await sandbox.kill(await sandbox.processes())
    assert await sandbox.processes() == []


async def test_who_is_gone_already_is_no_trouble_to_kill(sandbox: Sandbox) -> None:
    await sandbox.spawn(Command(["sleep", "603"]))
    await until_there(sandbox, "603")
    once = await sandbox.processes()
    await sandbox.kill(once)
    await sandbox.kill(once)
    assert await sandbox.processes() == []
