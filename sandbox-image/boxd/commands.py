"""Commands of the sidecar: started, fed, ended without a trace, and reaped."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import uuid
from typing import Any

import living
from asked import Answer, Refused, Request
from threads import Threads

HOME = "/home/agent"
TIMED_OUT = 124
CANNOT_START = 127
START_SECONDS = 60.0
OUTPUT_SECONDS = 5
CHUNK = 64 * 1024
REAP_AT_A_TIME = 200
MOST_UNCLAIMED = 4096
# vfork would hold the interpreter's lock, and with it every thread, until the child's exec, which
# may hang.
subprocess._USE_VFORK = False  # type: ignore[misc]


class Process(subprocess.Popen[bytes]):
    """Made before it is started: a start may hang, in a directory of a dead mount or in a program's
    file there, and who gives up must know the pid."""

    def __init__(self) -> None:
        self.pid = 0
        self.returncode: int | None = None
        self.given_up = False
        self.beginning = False

    def begin(self, *args: Any, **options: Any) -> Process | None:
        """In a thread, which may be held up at any point of it."""
        self.beginning = True
        try:
            if self.given_up:
                return None
            super().__init__(*args, **options)
            self.returncode = 0  # it is reaped by Children and not by its object
            return self
        finally:
            self.beginning = False

    def close_pipes(self) -> None:
        for pipe in (self.stdin, self.stdout, self.stderr):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()


class Children:
    """Starts processes and reaps: those, and all that lost their parent."""

    def __init__(self) -> None:
        self.reader = living.Reader()
        self._threads = Threads("starter")
        self._ends: dict[int, asyncio.Future[int]] = {}
        self._starting = 0
        # Of children that nobody waits for yet: their start may not have come back.
        self._unclaimed: dict[int, int] = {}

    def reap(self) -> None:
        with contextlib.suppress(ChildProcessError):
            for _ in range(REAP_AT_A_TIME):
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    return
                code = os.waitstatus_to_exitcode(status)
                end = self._ends.pop(pid, None)
                if end is not None and not end.done():
                    end.set_result(code)
                elif end is None and self._starting:
                    self._unclaimed[pid] = code
                    if len(self._unclaimed) > MOST_UNCLAIMED:
                        self._unclaimed.pop(next(iter(self._unclaimed)))
            # There may be more without an end: others must get their turn.
            asyncio.get_running_loop().call_soon(self.reap)

    async def start(
        self,
        request: Request,
        pipe: int,
        extra: dict[str, str],
        *,
        stderr: int | None = None,
        within: float = START_SECONDS,
    ) -> tuple[Process, asyncio.Future[int]]:
        """The process, and how it will have ended. Raises: OSError; Refused, when the start hangs;
        then nothing of it stays."""
        base = {"PATH": "/usr/bin:/bin", "HOME": HOME, "LANG": "C.UTF-8", living.MARK: "1"}
        process = Process()
        self._starting += 1
        try:
            await self._threads.run(
                lambda: process.begin(
                    request["argv"],
                    cwd=request["cwd"],
                    env={**base, **request["env"], **extra},
                    stdin=pipe,
                    stdout=pipe,
                    stderr=pipe if stderr is None else stderr,
                    start_new_session=True,
                    umask=0o022,  # ours is stricter, and the agent's files are not
                ),
                within,
                self._end_late,
            )
        except (asyncio.CancelledError, Refused):
            process.given_up = True
            self._end_before_exec(process)
            raise
        finally:
            self._starting -= 1
        return process, self._claim(process.pid)

    def _claim(self, pid: int) -> asyncio.Future[int]:
        end: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        code = self._unclaimed.pop(pid, None)
        if code is None or living.is_child(
            pid
        ):  # the code was that of one that had this pid before
            self._ends[pid] = end
        else:
            end.set_result(code)
        if not self._starting:
            self._unclaimed.clear()
        return end

    def _end_before_exec(self, process: Process) -> None:
        """If it is not too late: it must not do a thing when its mount comes back."""
        if process.pid:
            self._end_late(process)
        elif process.beginning:  # not forked yet, and past the last moment to leave it
            loop = asyncio.get_running_loop()
            loop.call_later(living.POLL_SECONDS, self._end_before_exec, process)

    def _end_late(self, process: Process | None) -> None:
        """Kill what was given up; all that it can have started by now is in its group."""
        if process is None:
            return
        if process.pid and living.is_child(process.pid):
            for kill in (os.kill, os.killpg):
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    kill(process.pid, signal.SIGKILL)
        if process.returncode == 0:
            process.close_pipes()

    async def run(self, request: Request, stdin: bytes) -> Answer:
        """To the end; nothing of it stays, also when this is cancelled."""
        mark = {"HOLDFAST_EXEC": uuid.uuid4().hex}
        marker = f"HOLDFAST_EXEC={mark['HOLDFAST_EXEC']}".encode()
        seconds = request["timeout"]
        deadline = None if seconds is None else asyncio.get_running_loop().time() + seconds
        within = START_SECONDS if seconds is None else min(seconds, START_SECONDS)
        try:
            process, end = await self.start(request, subprocess.PIPE, mark, within=within)
        except OSError as error:
            return _ended(CANNOT_START, b"", f"{request['argv'][0]}: {error.strerror}\n".encode())
        except Refused as refused:
            return _ended(TIMED_OUT, b"", f"{request['argv'][0]}: {refused}\n".encode())
        outputs = bytearray(), bytearray()
        reading = [
            asyncio.ensure_future(_collect(pipe, output))
            for pipe, output in zip((process.stdout, process.stderr), outputs, strict=True)
        ]
        feeding = asyncio.ensure_future(_feed(process.stdin, stdin))
        try:
            async with asyncio.timeout_at(deadline):
                code = await asyncio.shield(end)
        except TimeoutError:
            code = TIMED_OUT
        finally:
            killing = self.reader.kill_marked(marker, process.pid)
            try:
                await asyncio.shield(asyncio.ensure_future(killing))
                # Whoever holds the pipes open in spite of it must not hold up the answer.
                await asyncio.wait(reading, timeout=OUTPUT_SECONDS)
            finally:
                for task in (feeding, *reading):
                    task.cancel()
        return _ended(code if code >= 0 else 128 - code, *map(bytes, outputs))


def _ended(code: int, stdout: bytes, stderr: bytes) -> Answer:
    return {"exit_code": code, "stdout": len(stdout)}, stdout + stderr


async def _collect(pipe: Any, output: bytearray) -> None:
    reader = asyncio.StreamReader()
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), pipe
    )
    try:
        while data := await reader.read(CHUNK):
            output += data
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
