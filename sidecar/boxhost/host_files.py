"""Our end of walker.py, mender.py and editor.py: processes that touch a mounted workspace, killed
when they hang."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from pathlib import Path
from typing import Any

from sidecar.boxhost import answers, open_files, processes
from sidecar.boxhost.contract import MountSick

SCRIPT = Path(__file__).parent / "walker.py"
MENDER = Path(__file__).parent / "mender.py"
EDITOR = Path(__file__).parent / "editor.py"
KILL_SECONDS = 5


class HostFiles:
    """Calls into a mounted workspace, each bounded.

    Raises, in every call: MountSick.
    """

    def __init__(self, mountpoint: Path) -> None:
        self._mountpoint = mountpoint
        self._process: asyncio.subprocess.Process | None = None
        self.busy = asyncio.Lock()  # held while the walker is at a call

    async def call(self, op: str, *, bound: float, **arguments: Any) -> dict[str, Any]:
        async with self.busy:
            try:
                async with asyncio.timeout(bound):
                    answer = await self._ask({"op": op, **arguments})
            except TimeoutError:
                await self.close()
                raise MountSick("hang", f"the workspace hung for {bound} s in {op}") from None
            except (asyncio.IncompleteReadError, ConnectionError, ValueError) as error:
                await self.close()
                raise MountSick("died", f"the workspace's walker died in {op}: {error}") from error
            except asyncio.CancelledError:
                await self.close()  # its late answer must not meet the next question
                raise
        return answers.parse("walk", op, arguments, answer)

    async def mend(self, op: str, *, bound: float, **arguments: Any) -> dict[str, Any]:
        return await self._once("mend", MENDER, op, bound, arguments)

    async def edit(self, op: str, *, bound: float, **arguments: Any) -> dict[str, Any]:
        return await self._once("edit", EDITOR, op, bound, arguments)

    async def _once(
        self, tool: str, script: Path, op: str, bound: float, arguments: dict[str, Any]
    ) -> dict[str, Any]:
        """In a process of its own: it must not wait for a walk that may take minutes."""
        process = await _start(script, self._mountpoint)
        try:
            async with asyncio.timeout(bound):
                output, _ = await process.communicate(json.dumps({"op": op, **arguments}).encode())
        except TimeoutError:
            raise MountSick("hang", f"the workspace hung for {bound} s in {op}") from None
        finally:
            if process.returncode is None:
                await _end(process)
        if not output:
            raise MountSick("died", f"the workspace's {script.stem} died in {op}")
        return answers.parse(tool, op, arguments, output)

    async def held(self) -> set[int]:
        return await asyncio.to_thread(open_files.held_inodes, self._mountpoint)

    async def _ask(self, request: dict[str, Any]) -> bytes:
        if self._process is None or self._process.returncode is not None:
            self._process = await _start(SCRIPT, self._mountpoint)
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        stdin.write(json.dumps(request).encode() + b"\n")
        await stdin.drain()
        size = int(await stdout.readline())
        if not 0 <= size <= answers.MOST_BYTES:
            raise ValueError(f"an answer of {size} bytes")
        return await stdout.readexactly(size)

    async def close(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            await _end(process)


async def _start(script: Path, mountpoint: Path) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-I", "-S", str(script), str(mountpoint)),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        cwd="/",
    )


async def _end(process: asyncio.subprocess.Process) -> None:
    identity = processes.identify(process.pid)
    if identity is not None:  # not process.kill(): it reaps, behind asyncio's back
        processes.kill(identity)
    # A process that hangs in a dead file system may take its time: it holds nothing of ours.
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(KILL_SECONDS):
            await process.wait()
