"""Runs commands inside a box, each through a process of its own that enters it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping

from sidecar.boxhost import processes
from sidecar.boxhost.boxes import HOME, Box, Boxes, BoxFailed, BoxGone
from sidecar.boxhost.contract import TIMED_OUT, BoxCommand, Ran
from sidecar.tasks import background

# What is in the box is not trusted: `cat` of what it keeps may never end.
MOST_OUTPUT_BYTES = 64 << 20
OUTPUT_SECONDS = 5
NO_BOX = 125  # what enter.py answers when the box is not there to enter
ENVIRONMENT = {"PATH": "/usr/bin:/bin", "HOME": HOME, "LANG": "C.UTF-8"}


async def run(boxes: Boxes, box: Box, command: BoxCommand) -> Ran:
    """Raises: BoxGone; BoxFailed, when the command cannot be ended."""
    async with boxes.marked(box) as (name, value):
        process = await _enter(boxes, box, command, {name: value}, detached=False)
        entered = processes.identify(process.pid)
        written = bytearray(), bytearray()
        try:
            async with background() as tasks:
                output = tasks.start(_communicate(process, command.stdin, written))
                end = tasks.start(processes.wait_pid(process.pid, command.timeout))
                await asyncio.wait({output, end}, return_when=asyncio.FIRST_COMPLETED)
                if output.done() and output.exception() is not None:
                    output.result()
                ended = await end
                if not ended and entered is not None:
                    processes.kill(entered)
                # What the command left in the background holds its pipes open.
                await boxes.kill_marked(box, name, value)
                # Whoever holds them in spite of it must not hold up the answer.
                await asyncio.wait({output}, timeout=OUTPUT_SECONDS)
                if output.done():
                    output.result()
                else:
                    _close_pipes(process)
        finally:
            if entered is not None:  # not process.kill(): it reaps, behind asyncio's back
                processes.kill(entered)
    exit_code = process.returncode or 0 if ended else TIMED_OUT
    if exit_code == NO_BOX and not box.alive():
        raise BoxGone(f"box {box.id} cannot be entered")
    return Ran(exit_code, *map(bytes, written))


async def _communicate(
    process: asyncio.subprocess.Process, stdin: bytes | None, written: tuple[bytearray, bytearray]
) -> None:
    """What the command writes goes to `written`. Raises: BoxFailed, when it is too much."""
    async with background() as tasks:
        assert process.stdout is not None
        assert process.stderr is not None
        tasks.start(_feed(process, stdin))
        both = [
            tasks.start(_read_bounded(pipe, output))
            for pipe, output in zip((process.stdout, process.stderr), written, strict=True)
        ]
        for each in both:
            await each
        await process.wait()


def _close_pipes(process: asyncio.subprocess.Process) -> None:
    """Of a process that has ended. asyncio has no public way to let go of them."""
    process._transport.close()  # type: ignore[attr-defined]


async def _feed(process: asyncio.subprocess.Process, stdin: bytes | None) -> None:
    assert process.stdin is not None
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        process.stdin.write(stdin or b"")
        await process.stdin.drain()
    process.stdin.close()


async def _read_bounded(reader: asyncio.StreamReader, into: bytearray) -> None:
    while chunk := await reader.read(1 << 18):
        into += chunk
        if len(into) > MOST_OUTPUT_BYTES:
            raise BoxFailed(f"a command wrote more than {MOST_OUTPUT_BYTES} bytes")


async def spawn(boxes: Boxes, box: Box, command: BoxCommand) -> None:
    """Raises: BoxGone."""
    process = await _enter(boxes, box, command, {}, detached=True)
    if await process.wait() != 0:
        raise BoxGone(f"box {box.id} cannot be entered")


async def _enter(
    boxes: Boxes, box: Box, command: BoxCommand, extra: Mapping[str, str], *, detached: bool
) -> asyncio.subprocess.Process:
    if not box.alive():
        raise BoxGone(f"box {box.id} does not run")
    pipe = asyncio.subprocess.DEVNULL if detached else asyncio.subprocess.PIPE
    return await asyncio.create_subprocess_exec(
        *boxes.entering(box, command.argv, command.cwd, detached=detached),
        stdin=pipe,
        stdout=pipe,
        stderr=pipe,
        env={**ENVIRONMENT, **command.env, **extra},
        start_new_session=True,
    )
