"""Commands in a sandbox, as the command router keeps them: what a command has written stays, so
that a reader who lost its connection goes on from its offset."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from emulators.boxes import Box, BoxProcess

CHUNK = 64 * 1024
# The SDK's own deadline must come first: who asked for a timeout gets -1 from it, and not the exit
# code of the kill.
TIMEOUT_GRACE_SECONDS = 1
ENDING_SECONDS = 2
FS_TOOLS = "/__modal/.bin/modal-sandbox-fs-tools"
FS_TOOLS_SOURCE = (Path(__file__).parent / "fs_tools.py").read_text()


class StdinClosed(Exception):
    """Nothing more can be written to the command."""


@dataclass(frozen=True)
class Command:
    argv: Sequence[str]
    workdir: str
    env: Mapping[str, str]
    timeout: float | None = None


class Output:
    """All that was written to one stream so far."""

    def __init__(self) -> None:
        self._data = bytearray()
        self._ended = False
        self._news = asyncio.Condition()

    async def drain(self, stream: asyncio.StreamReader, *, kept: bool) -> None:
        while data := await stream.read(CHUNK):
            if kept:
                self._data += data
                async with self._news:
                    self._news.notify_all()
        async with self._news:
            self._ended = True
            self._news.notify_all()

    async def since(self, offset: int) -> AsyncIterator[tuple[int, bytes]]:
        """Offset and data, until the stream ends."""
        while True:
            async with self._news:
                while not self._ended and len(self._data) <= offset:
                    await self._news.wait()
            data = bytes(self._data[offset : offset + CHUNK])
            if not data:
                return
            yield offset, data
            offset += len(data)


class Exec:
    """A running command. `run` must be awaited for as long as it lives."""

    def __init__(self, process: BoxProcess, timeout: float | None) -> None:
        self._process = process
        self._timeout = timeout
        self._writing = asyncio.Lock()
        self.stdout = Output()
        self.stderr = Output()
        self.ended = asyncio.Event()
        self.written = 0
        self.stdin_closed = False

    @classmethod
    async def start(cls, box: Box, command: Command) -> Exec:
        """Raises: OSError, as `Box.exec` does; BoxNotRunning."""
        argv = list(command.argv)
        if argv[0] == FS_TOOLS:
            argv = ["python3", "-I", "-S", "-c", FS_TOOLS_SOURCE, *argv[1:]]
        process = await box.exec(argv, cwd=command.workdir or "/", env=command.env, user="root")
        return cls(process, command.timeout)

    @property
    def exit_code(self) -> int | None:
        """Minus the number of the signal that ended it; None while it runs."""
        return self._process.exit_code if self.ended.is_set() else None

    async def run(self, *, stdout: bool = True, stderr: bool = True) -> int:
        """Until it has ended and all its output is here."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self.stdout.drain(self._process.stdout, kept=stdout))
            group.create_task(self.stderr.drain(self._process.stderr, kept=stderr))
            code = await self._waited()
            self.ended.set()
        return code

    async def _waited(self) -> int:
        if self._timeout is not None:
            try:
                async with asyncio.timeout(self._timeout + TIMEOUT_GRACE_SECONDS):
                    return await self._process.wait()
            except TimeoutError:
                await self._process.kill()
        return await self._process.wait()

    async def write(self, offset: int, data: bytes, *, eof: bool) -> None:
        """What was written before is not written again.

        Raises: StdinClosed; ValueError, when bytes are missing in between.
        """
        async with self._writing:
            if offset > self.written:
                raise ValueError(f"stdin is at {self.written}, not at {offset}")
            data = data[self.written - offset :]
            if data:
                await self._write(data)
            if eof and not self.stdin_closed:
                self.stdin_closed = True
                self._process.stdin.close()

    async def _write(self, data: bytes) -> None:
        if self.stdin_closed:
            raise StdinClosed("stdin is closed")
        try:
            self._process.stdin.write(data)
            await self._process.stdin.drain()
        except ConnectionError as error:
            # the SDK asks at once whether the command has ended
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(ENDING_SECONDS):
                    await self.ended.wait()
            raise StdinClosed("the command does not read any more") from error
        self.written += len(data)

    async def kill(self) -> None:
        await self._process.kill()
