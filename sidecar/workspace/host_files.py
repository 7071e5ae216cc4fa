"""The sidecar's end of walker.py: one process per mounted workspace, killed when it hangs."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from pathlib import Path
from typing import Any

from contracts.errors import NotDurable
from sidecar.boxhost import processes

SCRIPT = Path(__file__).parent / "walker.py"


class MountSick(NotDurable):
    """The mounted workspace does not answer as a file system should. `kind` tells how."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message, hint="It will be mounted anew.", kind=kind)
        self.kind = kind


ERRNO_KINDS = {107: "ENOTCONN", 13: "EACCES", 5: "EIO", 103: "ECONNABORTED"}


class HostFiles:
    """Calls into a mounted workspace, each bounded.

    Raises, in every call: MountSick.
    """

    def __init__(self, mountpoint: Path) -> None:
        self._mountpoint = mountpoint
        self._process: asyncio.subprocess.Process | None = None
        self._busy = asyncio.Lock()

    async def call(self, op: str, *, bound: float, **arguments: Any) -> dict[str, Any]:
        async with self._busy:
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
        if "error" in answer:
            kind = ERRNO_KINDS.get(answer["errno"], f"errno {answer['errno']}")
            raise MountSick(kind, f"the workspace answered {answer['error']}")
        result: dict[str, Any] = answer["ok"]
        return result

    async def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        if self._process is None or self._process.returncode is not None:
            self._process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-I", "-S", str(SCRIPT), str(self._mountpoint)),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                cwd="/",
            )
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        stdin.write(json.dumps(request).encode() + b"\n")
        await stdin.drain()
        size = int(await stdout.readline())
        answer: dict[str, Any] = json.loads(await stdout.readexactly(size))
        return answer

    async def close(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        identity = processes.identify(process.pid)
        if identity is not None:  # not process.kill(): it reaps, behind asyncio's back
            processes.kill(identity)
        # A process that hangs in a dead file system may take its time: it holds nothing of ours.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(5):
                await process.wait()
