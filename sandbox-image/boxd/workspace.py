"""The workspace where nothing outside can reach it: walked, mended and mounted from in here.

The scripts are the host's own (walker.py, mender.py, editor.py): what touches a workspace is the
same everywhere.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import IO

import living
from asked import Answer, Refused, Request
from commands import Children, Process
from threads import Threads

PLACE = Path(living.WORKSPACE)
HERE = Path(__file__).parent
OPS = ("walk", "mend", "edit", "mount", "unmount", "mounted")
# These wait for no walk, which may take minutes.
ONCE = {"mend": "mender.py", "edit": "editor.py"}
MOUNT_SECONDS = 30
UNMOUNT_SECONDS = 8
POLL_SECONDS = 0.01
LOG = Path("/tmp/holdfast-mount.log")  # noqa: S108 - inside the box
PYTHON = ("python3", "-I", "-S")


class Workspace:
    def __init__(self, children: Children, threads: Threads) -> None:
        self._children = children
        self._threads = threads
        self._walker: Helper | None = None
        self._walking = asyncio.Lock()
        self._daemon: tuple[int, str] | None = None  # pid and token

    async def do(self, op: str, request: Request, body: bytes) -> Answer:
        if op == "walk":
            return {}, await self._walk(request["within"], body)
        if op in ONCE:
            return {}, await self._once(ONCE[op], request["within"], body)
        if op == "mount":
            await self._mount(request["argv"], request["env"])
        elif op == "unmount":
            await self._unmount(gently=request["gently"])
        return {"mounted": self._is_mounted(), "alive": self._alive()}, b""

    async def _walk(self, bound: float, line: bytes) -> bytes:
        """One call of walker.py, in a process that remembers what it saw."""
        async with self._walking:
            if self._walker is None or self._walker.ended:
                self._walker = await Helper.start(self._children, self._threads, "walker.py")
            try:
                async with asyncio.timeout(bound):
                    return await self._walker.ask(line)
            except TimeoutError:
                self._drop_walker()
                raise Refused(f"the workspace hung for {bound} s", "hang") from None
            except (asyncio.IncompleteReadError, ConnectionError, ValueError) as error:
                self._drop_walker()
                raise Refused(f"the workspace's walker died: {error}", "died") from error
            except asyncio.CancelledError:
                self._drop_walker()  # its late answer must not meet the next question
                raise

    def _drop_walker(self) -> None:
        if self._walker is not None:
            self._walker.kill()
            self._walker = None

    async def _once(self, script: str, bound: float, line: bytes) -> bytes:
        helper = await Helper.start(self._children, self._threads, script)
        try:
            async with asyncio.timeout(bound):
                return await helper.communicate(line)
        except TimeoutError:
            raise Refused(f"the workspace hung for {bound} s", "hang") from None
        finally:
            helper.kill()

    async def _mount(self, argv: list[str], env: dict[str, str]) -> None:
        """Start the daemon and wait until its mount is in place."""
        await self._unmount(gently=False)
        pid = await self._threads.run(
            lambda: _start_daemon(argv, env),
            MOUNT_SECONDS,
            lambda late: os.kill(late, signal.SIGKILL),
        )
        _exempt(pid)
        self._daemon = (pid, living.token_of(pid))
        deadline = time.monotonic() + MOUNT_SECONDS
        while not self._is_mounted():
            if not self._alive() or time.monotonic() > deadline:
                await self._unmount(gently=False)
                raise Refused(f"the workspace cannot be mounted: {await self._threads.run(_said)}")
            await asyncio.sleep(POLL_SECONDS)

    async def _unmount(self, *, gently: bool) -> None:
        self._drop_walker()
        if gently and self._is_mounted():
            await self._fusermount("-u")
        if self._daemon is not None:
            pid, token = self._daemon
            if token:
                await living.kill([token])
            living.EXEMPT.discard(pid)
            self._daemon = None
        # Only now: a lazy unmount under a living daemon would leave a writer nobody sees.
        for _ in range(10):
            if not self._is_mounted():
                return
            await self._fusermount("-uz")
        raise Refused("the workspace's mount cannot be ended")

    async def _fusermount(self, how: str) -> None:
        request = {"argv": ["fusermount3", how, str(PLACE)], "cwd": "/", "env": {}}
        await self._children.run({**request, "timeout": UNMOUNT_SECONDS}, b"")

    def _is_mounted(self) -> bool:
        with open("/proc/self/mountinfo", encoding="utf-8") as lines:  # noqa: PTH123
            return any(line.split(maxsplit=5)[4] == str(PLACE) for line in lines)

    def _alive(self) -> bool:
        return self._daemon is not None and living.token_of(self._daemon[0]) == self._daemon[1]


def _start_daemon(argv: list[str], env: dict[str, str]) -> int:
    PLACE.mkdir(mode=0o755, exist_ok=True)
    if any(PLACE.iterdir()):
        raise Refused("the workspace has files that are not in the store")
    with LOG.open("wb") as log:
        process = subprocess.Popen(
            argv,
            env=env,
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=log.fileno(),
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    process.returncode = 0  # it is reaped with all the others
    return process.pid


def _exempt(pid: int) -> None:
    """From freezes; one that was under way may have stopped it already."""
    living.EXEMPT.add(pid)
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGCONT)


def _said() -> str:
    return LOG.read_text(errors="replace").strip()[-800:]


class Helper:
    """A script of ours at the workspace, which a freeze passes over."""

    def __init__(
        self,
        process: Process,
        end: asyncio.Future[int],
        threads: Threads,
        reader: asyncio.StreamReader,
        transport: asyncio.BaseTransport,
    ) -> None:
        self._process = process
        self._end = end
        self._threads = threads
        self._reader = reader
        self._transport = transport

    @classmethod
    async def start(cls, children: Children, threads: Threads, script: str) -> Helper:
        argv = [*PYTHON, str(HERE / script), str(PLACE)]
        process, end = await children.start(
            {"argv": argv, "cwd": "/", "env": {}}, subprocess.PIPE, {}, stderr=subprocess.DEVNULL
        )
        _exempt(process.pid)
        end.add_done_callback(lambda _: living.EXEMPT.discard(process.pid))
        reader = asyncio.StreamReader(limit=1 << 20)
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), process.stdout
        )
        return cls(process, end, threads, reader, transport)

    @property
    def ended(self) -> bool:
        return self._end.done()

    async def ask(self, line: bytes) -> bytes:
        question = json.dumps(json.loads(line)).encode() + b"\n"
        await self._threads.run(lambda: self._send(question))
        size = int(await self._reader.readline())
        return await self._reader.readexactly(size)

    async def communicate(self, data: bytes) -> bytes:
        await self._threads.run(lambda: self._send(data))
        self._stdin.close()
        return await self._reader.read()

    @property
    def _stdin(self) -> IO[bytes]:
        assert self._process.stdin is not None
        return self._process.stdin

    def _send(self, data: bytes) -> None:
        self._stdin.write(data)
        self._stdin.flush()

    def kill(self) -> None:
        if not self._end.done():
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._process.pid, signal.SIGKILL)
        with contextlib.suppress(OSError, ValueError):
            self._stdin.close()
        # By the transport, which knows that the loop waits for it: the next pipe gets its number.
        self._transport.close()
