"""What tests do in boxes, each within a bound."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from emulators.boxes import Box, BoxProcess, User

WITHIN = 30.0


@dataclass(frozen=True)
class Result:
    exit_code: int
    stdout: str
    stderr: str


async def run(
    box: Box,
    *argv: str,
    stdin: bytes = b"",
    cwd: str = "/",
    env: Mapping[str, str] | None = None,
    user: User = "agent",
) -> Result:
    async with asyncio.timeout(WITHIN):
        process = await box.exec(argv, cwd=cwd, env=env, user=user)
        process.stdin.write(stdin)
        process.stdin.close()
        stdout, stderr = await asyncio.gather(process.stdout.read(), process.stderr.read())
        return Result(await process.wait(), stdout.decode(), stderr.decode())


async def python(box: Box, script: str, *argv: str, user: User = "agent") -> BoxProcess:
    """A script that has said its first line, `ready`."""
    process = await box.exec(["python3", "-I", "-S", "-u", "-c", script, *argv], user=user)
    async with asyncio.timeout(WITHIN):
        line = await process.stdout.readline()
        assert line == b"ready\n", (line, await process.stderr.read())
    return process


async def processes(box: Box, pattern: str) -> Sequence[str]:
    """The pids inside of what has `pattern` in its command line."""
    return (await run(box, "pgrep", "-f", pattern, user="root")).stdout.split()


async def wait(process: BoxProcess) -> int:
    async with asyncio.timeout(WITHIN):
        return await process.wait()
