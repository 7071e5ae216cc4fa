"""Runs commands inside a box, each through a process of its own that enters it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from sidecar.boxhost import processes
from sidecar.boxhost.boxes import HOME, Box, Boxes, BoxGone
from sidecar.boxhost.contract import TIMED_OUT, BoxCommand, Ran
from sidecar.tasks import background

NO_BOX = 125  # what enter.py answers when the box is not there to enter
ENVIRONMENT = {"PATH": "/usr/bin:/bin", "HOME": HOME, "LANG": "C.UTF-8"}


async def run(boxes: Boxes, box: Box, command: BoxCommand) -> Ran:
    """Raises: BoxGone; BoxFailed, when the command cannot be ended."""
    async with boxes.marked(box) as (name, value):
        process = await _enter(boxes, box, command, {name: value}, detached=False)
        entered = processes.identify(process.pid)
        try:
            async with background() as tasks:
                output = tasks.start(process.communicate(command.stdin))
                ended = await processes.wait_pid(process.pid, command.timeout)
                if not ended and entered is not None:
                    processes.kill(entered)
                # What the command left in the background holds its pipes open.
                await boxes.kill_marked(box, name, value)
                collected: tuple[bytes, bytes] = await output
        finally:
            if entered is not None:  # not process.kill(): it reaps, behind asyncio's back
                processes.kill(entered)
    exit_code = process.returncode or 0 if ended else TIMED_OUT
    if exit_code == NO_BOX and not box.alive():
        raise BoxGone(f"box {box.id} cannot be entered")
    return Ran(exit_code, *collected)


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
