"""Boxes: what an emulated cloud gives out. Two backends make them, `containers` and `processes`.

A box has a network of its own with nothing but a loopback in it, the users `agent` (uid 1000, HOME
/home/agent) and `root`, python3, boxd at /opt/holdfast/boxd, the harnesses at /opt/harness, node at
/opt/node, and may mount FUSE file systems. `/session` is on its own disk; `agent` may write there.

    BoxError
    ├── BoxFailed        the box could not be made, started or ended
    └── BoxNotRunning    stopped, paused, destroyed, or its first process is gone
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Literal, Protocol

from emulators.options import Options

User = Literal["agent", "root"]
HOMES: Mapping[User, str] = {"agent": "/home/agent", "root": "/root"}
UIDS: Mapping[User, int] = {"agent": 1000, "root": 0}


class BoxError(Exception):
    """Something is wrong with a box."""


class BoxFailed(BoxError):
    """A box could not be made, started or ended."""


class BoxNotRunning(BoxError):
    """The box is stopped, paused or gone."""


class BoxProcess(Protocol):
    """A command in a box. What it writes waits until it is read: drain both outputs."""

    stdin: asyncio.StreamWriter  # close() it to give the command its end of file
    stdout: asyncio.StreamReader
    stderr: asyncio.StreamReader
    pid: int  # as it is inside the box

    @property
    def exit_code(self) -> int | None:
        """None while it runs; as `wait` gives it afterwards."""
        ...

    async def wait(self) -> int:
        """The exit code, or minus the number of the signal that ended it; when the command itself
        has ended, whatever it left running in the background. Of a box that ended under it: -9."""
        ...

    def signal(self, number: int) -> bool:
        """Send it, to this process alone; False if it is gone."""
        ...

    async def kill(self) -> None:
        """SIGKILL to it, to its descendants and to their sessions, also when it has ended itself
        and they have not. Returns when they are gone. What made itself a daemon lives on."""
        ...


class Box(Protocol):
    """One box. Every method but `running` and `destroy` raises BoxNotRunning on one that does not
    run, `start` on one that is destroyed and `resume` on one that is not paused."""

    id: str

    async def exec(
        self,
        argv: Sequence[str],
        *,
        cwd: str = "/",
        env: Mapping[str, str] | None = None,
        user: User = "agent",
    ) -> BoxProcess:
        """Start a command, as the leader of a session of its own, with the environment of the
        image, of the box and `env`, in this order.

        Raises: FileNotFoundError, NotADirectoryError, PermissionError, for `cwd` (then it is the
            error's `filename`) or for the program; BoxNotRunning.
        """
        ...

    async def connect(self, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A TCP connection to 127.0.0.1:`port` inside.

        Raises: ConnectionRefusedError, when nobody listens; BoxNotRunning.
        """
        ...

    async def read(self, path: str, user: User = "agent") -> bytes:
        """Raises: OSError, as `open` does inside for this user; BoxNotRunning."""
        ...

    async def write(self, path: str, data: bytes, user: User = "agent", mode: int = 0o644) -> None:
        """Write a whole file, making its directories, which are the user's.

        Raises: OSError, as `open` does inside for this user; BoxNotRunning.
        """
        ...

    async def pause(self) -> None:
        """Stop every process in its tracks; memory and connections are kept. Raises: BoxFailed."""
        ...

    async def resume(self) -> None:
        """Undo `pause`. Raises: BoxFailed."""
        ...

    async def stop(self) -> None:
        """End every process, of a paused box too; the disk stays. Idempotent. Raises: BoxFailed."""
        ...

    async def start(self) -> None:
        """Run again after `stop`, with the disk as it was. Idempotent. Raises: BoxFailed."""
        ...

    async def destroy(self) -> None:
        """End it in whatever state it is, and remove all of it. Idempotent. Raises: BoxFailed."""
        ...

    def running(self) -> bool:
        """Whether it runs: not paused, not stopped, not destroyed, and its first process lives."""
        ...


class Boxes(Protocol):
    async def create(self, name: str, env: Mapping[str, str]) -> Box:
        """A new running box; `name` is its `id`, one that no other box of this emulator has.

        Raises: BoxFailed.
        """
        ...


@contextlib.asynccontextmanager
async def open_boxes(options: Options) -> AsyncIterator[Boxes]:
    """The backend that the options ask for; on leaving, every box that it made is destroyed. First
    it removes what emulators have left behind that were killed.

    Raises: BoxFailed, when the backend cannot work here; it says what is missing.
    """
    from emulators import containers, processes

    why_not = "not asked for"
    if options.backend != "process":
        why_not = await containers.trouble(options)
        if not why_not:
            async with containers.opened(options) as in_containers:
                yield in_containers
            return
    if options.backend == "container":
        raise BoxFailed(why_not)
    if trouble := await processes.trouble(options):
        raise BoxFailed(f"{trouble}; containers: {why_not}")
    async with processes.opened(options) as in_processes:
        yield in_processes
