"""A running box as the kernel knows it, and the commands in it. The same for both backends: what
makes a box differs, what is done inside does not. Needs root."""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

from emulators import process_table
from emulators.boxes import UIDS, BoxFailed, BoxNotRunning, User
from emulators.freezing import freezer_of

ENTER = Path(__file__).with_name("enter.py")
STREAM_LIMIT = 1 << 20
KILL_SECONDS = 10
POLL_SECONDS = 0.01


class Inside:
    """Named by the pidfd of its first process: a reused pid cannot be mistaken for it."""

    def __init__(self, pid: int, capabilities: int | None = None) -> None:
        """`capabilities` is the mask of what root may have inside; None: as the first process.

        Raises: BoxFailed, when there is no such process.
        """
        self.pid = pid
        self.pidfd = -1
        self._commands: set[Command] = set()
        try:
            self.pidfd = os.pidfd_open(pid)
            self.pid_namespace = Path(f"/proc/{pid}/ns/pid").stat().st_ino
            self._capabilities = capabilities or _bounding_set(pid)
            freezer = freezer_of(pid)
        except (ProcessLookupError, FileNotFoundError) as error:
            self.close()
            raise BoxFailed("the box ended at once") from error
        self._cgroup = "" if freezer is None else str(freezer / "cgroup.procs")

    def alive(self) -> bool:
        return self.pidfd >= 0 and not select.select([self.pidfd], [], [], 0)[0]

    async def ended(self, seconds: float) -> bool:
        """Whether the first process, and all others with it, are gone within `seconds`."""
        deadline = asyncio.get_running_loop().time() + seconds
        while self.alive():
            if asyncio.get_running_loop().time() > deadline:
                return False
            await asyncio.sleep(POLL_SECONDS)
        return True

    def close(self) -> None:
        """Let go of everything, at the end of the box."""
        for command in list(self._commands):
            command.close()
        if self.pidfd >= 0:
            os.close(self.pidfd)
            self.pidfd = -1

    async def exec(
        self, argv: Sequence[str], *, cwd: str, env: Mapping[str, str], user: User
    ) -> Command:
        """Raises: as `Box.exec`."""
        command = await self._enter(["exec", *argv], cwd=cwd, env=env, user=user)
        try:
            command.begin(_told(await command.status.read(), cwd, argv[0]))
        except BaseException:
            command.close()
            raise
        return command

    async def read(self, path: str, user: User) -> bytes:
        """Raises: as `Box.read`."""
        return await self._transfer(["read", path], b"", user)

    async def write(self, path: str, data: bytes, user: User, mode: int) -> None:
        """Raises: as `Box.write`."""
        await self._transfer(["write", path, str(mode)], data, user)

    async def _transfer(self, what: Sequence[str], data: bytes, user: User) -> bytes:
        command = await self._enter(what, cwd="/", env={}, user=user)
        try:
            async with asyncio.TaskGroup() as group:
                output = group.create_task(command.stdout.read())
                group.create_task(_feed(command.stdin, data))
            _told(await command.status.read(), "/", what[1])
            if (code := await command.wait()) != 0:
                raise BoxNotRunning(f"{what[0]} in the box ended with {code}")
        finally:
            command.close()
        return output.result()

    async def _enter(
        self, what: Sequence[str], *, cwd: str, env: Mapping[str, str], user: User
    ) -> Command:
        """A command whose status is still to be read."""
        if not self.alive():
            raise BoxNotRunning("the box has ended")
        for old in [each for each in self._commands if each.spent()]:
            old.close()
        command = Command(*self._popen(what, cwd=cwd, env=env, user=user), self)
        self._commands.add(command)
        try:
            await command.connect()
        except BaseException:
            command.close()
            raise
        return command

    def forget(self, command: Command) -> None:
        self._commands.discard(command)

    def _popen(
        self, what: Sequence[str], *, cwd: str, env: Mapping[str, str], user: User
    ) -> tuple[subprocess.Popen[bytes], IO[bytes]]:
        """The process of `enter.py`, and its status. Not asyncio's: that one's `wait` may wait for
        the pipes too, which a daemon that the command leaves behind keeps open."""
        read_end, write_end = os.pipe()
        status = os.fdopen(read_end, "rb")
        head = [sys.executable, "-I", "-S", str(ENTER), str(write_end), str(self.pidfd)]
        head += [self._cgroup, str(self._capabilities), str(UIDS[user]), cwd]
        try:
            process = subprocess.Popen(
                [*head, *what],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=dict(env),
                pass_fds=(write_end, self.pidfd),
                start_new_session=True,
            )
        except BaseException:
            status.close()
            raise
        finally:
            os.close(write_end)
        return process, status


class Command:
    """A `BoxProcess`."""

    stdin: asyncio.StreamWriter
    stdout: asyncio.StreamReader
    stderr: asyncio.StreamReader
    status: asyncio.StreamReader  # of `enter.py`

    def __init__(self, process: subprocess.Popen[bytes], status: IO[bytes], inside: Inside) -> None:
        self.pid = 0
        self._process = process
        self._status = status
        self._inside = inside
        self._leader = 0
        self._leader_fd = -1
        self._transports: list[asyncio.BaseTransport] = []
        self._ended = asyncio.Event()
        self._process_fd = os.pidfd_open(process.pid)
        asyncio.get_running_loop().add_reader(self._process_fd, self._reap)

    async def connect(self) -> None:
        """Make streams of the pipes."""
        loop = asyncio.get_running_loop()
        protocol = asyncio.StreamReaderProtocol(asyncio.StreamReader())
        transport, _ = await loop.connect_write_pipe(lambda: protocol, self._process.stdin)
        self._transports.append(transport)
        self.stdin = asyncio.StreamWriter(transport, protocol, None, loop)
        self.stdout = await self._reading(self._process.stdout)
        self.stderr = await self._reading(self._process.stderr)
        self.status = await self._reading(self._status)

    async def _reading(self, pipe: IO[bytes] | None) -> asyncio.StreamReader:
        reader = asyncio.StreamReader(limit=STREAM_LIMIT)
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), pipe
        )
        self._transports.append(transport)
        return reader

    def begin(self, pids: tuple[int, int]) -> None:
        """It runs, under these pids, outside and inside."""
        self._leader, self.pid = pids
        with contextlib.suppress(ProcessLookupError):  # it may have ended already
            self._leader_fd = os.pidfd_open(self._leader)

    def spent(self) -> bool:
        """Whether it has ended and its output is read, so that there is nothing left to do."""
        return self._ended.is_set() and all(each.is_closing() for each in self._transports)

    def close(self) -> None:
        """Let go of it; it is not ended by that."""
        for transport in self._transports:
            if isinstance(transport, asyncio.WriteTransport) and transport.get_write_buffer_size():
                transport.abort()  # what it has not read is not for it any more
            elif not transport.is_closing():
                transport.close()
        for pipe in (*_pipes(self._process), self._status):
            pipe.close()
        if self._leader_fd >= 0:
            os.close(self._leader_fd)
            self._leader_fd = -1
        self._inside.forget(self)

    @property
    def exit_code(self) -> int | None:
        return self._process.returncode

    def _reap(self) -> None:
        if self._process.poll() is not None:
            asyncio.get_running_loop().remove_reader(self._process_fd)
            os.close(self._process_fd)
            self._ended.set()

    async def wait(self) -> int:
        await self._ended.wait()
        code: int = self._process.returncode
        return code

    def signal(self, number: int) -> bool:
        if self._leader_fd < 0 or self.exit_code is not None:
            return False
        try:
            signal.pidfd_send_signal(self._leader_fd, number)
        except ProcessLookupError:
            return False
        return True

    async def kill(self) -> None:
        deadline = asyncio.get_running_loop().time() + KILL_SECONDS
        while left := process_table.tree(self._leader, self._inside.pid_namespace):
            for each in left:
                process_table.kill(each)
            if asyncio.get_running_loop().time() > deadline:
                raise BoxFailed(f"processes survive SIGKILL: {[each.pid for each in left]}")
            await asyncio.sleep(POLL_SECONDS)
        await self.wait()


def _pipes(process: subprocess.Popen[bytes]) -> list[IO[bytes]]:
    return [pipe for pipe in (process.stdin, process.stdout, process.stderr) if pipe is not None]


def _bounding_set(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    line = next(line for line in status.splitlines() if line.startswith("CapBnd:"))
    return int(line.split()[1], 16)


def _told(status: bytes, cwd: str, target: str) -> tuple[int, int]:
    """The pids in the status of `enter.py`. Raises: OSError, BoxNotRunning."""
    word, *rest = status.decode().split() or ["nothing"]
    if word == "started":
        return int(rest[0]), int(rest[1])
    if word == "error" and rest[1] != "box":
        code = int(rest[0])
        raise OSError(code, os.strerror(code), cwd if rest[1] == "cwd" else target)
    raise BoxNotRunning("the box has ended")


async def _feed(stdin: asyncio.StreamWriter, data: bytes) -> None:
    try:
        stdin.write(data)
        await stdin.drain()
    except ConnectionError:
        pass  # it did not want it all, and its status says why
    finally:
        stdin.close()
