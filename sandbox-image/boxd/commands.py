"""Commands of the sidecar: started, fed, ended without a trace, and reaped."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import uuid
from typing import Any

import living
from asked import Answer, Request

HOME = "/home/agent"
TIMED_OUT = 124
CANNOT_START = 127


class Children:
    """Starts processes and reaps: those, and all that lost their parent."""

    def __init__(self) -> None:
        self._ends: dict[int, asyncio.Future[int]] = {}

    def reap(self) -> None:
        with contextlib.suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    return
                end = self._ends.pop(pid, None)
                if end is not None and not end.done():
                    end.set_result(os.waitstatus_to_exitcode(status))

    def start(
        self, request: Request, pipe: int, extra: dict[str, str], *, stderr: int | None = None
    ) -> Any:
        """The process, and how it will have ended. Raises: OSError."""
        base = {"PATH": "/usr/bin:/bin", "HOME": HOME, "LANG": "C.UTF-8", living.MARK: "1"}
        process = subprocess.Popen(
            request["argv"],
            cwd=request["cwd"],
            env={**base, **request["env"], **extra},
            stdin=pipe,
            stdout=pipe,
            stderr=pipe if stderr is None else stderr,
            start_new_session=True,
            umask=0o022,  # ours is stricter, and the agent's files are not
        )
        process.returncode = 0  # it is reaped here and not by its object
        end: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._ends[process.pid] = end
        return process, end

    async def run(self, request: Request, stdin: bytes) -> Answer:
        """To the end; nothing of it stays, also when this is cancelled."""
        mark = {"HOLDFAST_EXEC": uuid.uuid4().hex}
        marker = f"HOLDFAST_EXEC={mark['HOLDFAST_EXEC']}".encode()
        try:
            process, end = self.start(request, subprocess.PIPE, mark)
        except OSError as error:
            return _ended(CANNOT_START, b"", f"{request['argv'][0]}: {error.strerror}\n".encode())
        output = asyncio.gather(_collect(process.stdout), _collect(process.stderr))
        feeding = asyncio.ensure_future(_feed(process.stdin, stdin))
        try:
            async with asyncio.timeout(request["timeout"]):
                code = await asyncio.shield(end)
        except TimeoutError:
            code = TIMED_OUT
        finally:
            await asyncio.shield(asyncio.ensure_future(living.kill_marked(marker)))
            feeding.cancel()
        stdout, stderr = await output
        return _ended(code if code >= 0 else 128 - code, stdout, stderr)


def _ended(code: int, stdout: bytes, stderr: bytes) -> Answer:
    return {"exit_code": code, "stdout": len(stdout)}, stdout + stderr


async def _collect(pipe: Any) -> bytes:
    reader = asyncio.StreamReader()
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), pipe
    )
    try:
        return await reader.read()
    finally:
        transport.close()


async def _feed(pipe: Any, data: bytes) -> None:
    loop = asyncio.get_running_loop()
    transport, protocol = await loop.connect_write_pipe(asyncio.streams.FlowControlMixin, pipe)
    writer = asyncio.StreamWriter(transport, protocol, None, loop)
    with contextlib.suppress(ConnectionError):
        writer.write(data)
        await writer.drain()
    transport.close()
