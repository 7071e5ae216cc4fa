"""Box-hosts that die by SIGKILL at a chosen point: a process that forks one for each order.

Run as `python -m tests.support.crash.host_process`; an order is a line of JSON on stdin, and the
answer, a line on stdout, is the signal that the box-host died of, 0 for none. What it started
lives on, as it does after the death of a real one.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NoReturn
from unittest import mock

from sidecar.boxhost import boxes, freezer, namespaces, processes
from sidecar.boxhost.boxes import BoxSpec
from sidecar.boxhost.in_process import HostParts, OwnHost
from sidecar.boxhost.mounts import Mounts
from sidecar.boxhost.processes import ProcessId
from sidecar.record_files import TEMPORARY

BOX, SESSION, ENGINE, BUCKET = "box-1", "session-1", "weed", "workspaces"
# What changes a directory, by the name of Python's audit event.
CHANGES = frozenset(
    {"os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.chmod", "os.chown", "shutil.rmtree"}
)
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
CGROUP = "/holdfast-"
# A box-host that neither dies nor comes to its end.
MOST_SECONDS = 60


@dataclass(frozen=True)
class Order:
    """Do `what` in the directory `home`, and die at the `at`-th point. `signals`: freeze without a
    cgroup."""

    what: str
    home: str
    bwrap: str
    at: int = 0
    weed: str = "/nonexistent"
    filer: str = "127.0.0.1:1"
    signals: bool = False

    def host(self) -> OwnHost:
        home = Path(self.home)
        return OwnHost(
            HostParts(
                data_dir=home / "data",
                run_dir=home / "run",
                bwrap=Path(self.bwrap),
                harness_dir=Path(__file__).parent,
                node=Path(sys.executable),
                weed=Path(self.weed),
                geesefs=None,
                filer=self.filer,
                s3_endpoint="http://127.0.0.1:1",
                bucket=BUCKET,
            )
        )

    def spec(self) -> BoxSpec:
        home = Path(self.home)
        return BoxSpec(BOX, SESSION, {"session": SESSION}, None, home / "gateway")


async def start(host: OwnHost, order: Order) -> None:
    await host.boxes.start(order.spec())


async def kill(host: OwnHost, _: Order) -> None:
    await host.boxes.kill(BOX)


async def freeze(host: OwnHost, _: Order) -> None:
    box = host.kept.get(BOX)
    assert box is not None
    await host.boxes.freeze(box)


async def thaw(host: OwnHost, _: Order) -> None:
    await host.boxes.thaw(BOX)


async def mount(host: OwnHost, _: Order) -> None:
    await host.mounts.mount(SESSION, ENGINE, None, None)


async def unmount(host: OwnHost, _: Order) -> None:
    await host.mounts.unmount(SESSION)


async def forget(host: OwnHost, _: Order) -> None:
    await host.mounts.forget(SESSION)


async def clear(host: OwnHost, _: Order) -> None:
    await host.clear_leftovers()


LIVES: dict[str, Callable[[OwnHost, Order], Awaitable[None]]] = {
    each.__name__: each for each in (start, kill, freeze, thaw, mount, unmount, forget, clear)
}


class Points:
    """Places to die at: before each change of the directory or of a cgroup, of a file also when it
    is open and nothing is in it; before each signal, mount, unmount and wait; after each start."""

    def __init__(self, below: str, at: int) -> None:
        self._below = below
        self._at = at
        self._count = 0

    def reach(self) -> None:
        self._count += 1
        if self._count == self._at:
            os.kill(os.getpid(), signal.SIGKILL)

    def notice(self, event: str, arguments: tuple[Any, ...]) -> None:
        """Python's audit hook: before the change."""
        if event == "open":
            path, _, flags = arguments
            if isinstance(flags, int) and flags & WRITING and self._ours(path):
                self.reach()
                self._reach_opened(path, flags)
        elif event in CHANGES and self._ours(arguments[0]):
            self.reach()

    def _reach_opened(self, path: str, flags: int) -> None:
        self._count += 1
        if self._count == self._at:  # the open here is noticed as well, and goes by
            os.open(path, flags, 0o600)
            os.kill(os.getpid(), signal.SIGKILL)

    def _ours(self, path: object) -> bool:
        if not isinstance(path, str | bytes | os.PathLike):
            return False
        name = os.fsdecode(path)
        if name.endswith(TEMPORARY) and not Path(name).exists():  # nobody reads it as it is made
            return False
        # Without a directory it is named below one that is open: shutil removes trees so.
        return name.startswith(self._below) or CGROUP in name or "/" not in name

    def before(self, inner: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **more: Any) -> Any:
            self.reach()
            return inner(*args, **more)

        return call

    def after(self, inner: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **more: Any) -> Any:
            answer = inner(*args, **more)
            self.reach()
            return answer

        return call

    @contextlib.contextmanager
    def intercepting(self) -> Iterator[None]:
        with (
            mock.patch.object(processes, "start_lasting", self.after(processes.start_lasting)),
            mock.patch.object(processes, "kill", self.before(processes.kill)),
            mock.patch.object(processes, "wait_gone", self.before(processes.wait_gone)),
            mock.patch.object(namespaces, "mount", self.before(namespaces.mount)),
            mock.patch.object(boxes, "_read_line", self.before(boxes._read_line)),
            mock.patch.object(Mounts, "_run_umount", self.before(Mounts._run_umount)),
        ):
            yield


def only_signals(place: Path, _: ProcessId) -> Iterator[freezer.Way]:
    yield freezer.Signals(place)


def live(order: Order) -> NoReturn:
    os.umask(0o077)  # as the service has it
    signal.alarm(MOST_SECONDS)
    points = Points(order.home, order.at)
    with contextlib.ExitStack() as stack:
        if order.signals:
            stack.enter_context(mock.patch.object(freezer, "ways", only_signals))
        stack.enter_context(points.intercepting())
        sys.addaudithook(points.notice)
        asyncio.run(LIVES[order.what](order.host(), order))  # type: ignore[arg-type]
        # A clean end would wait for threads, and some wait for what lives on.
        os._exit(0)


def main() -> None:
    for line in sys.stdin:
        order = Order(**json.loads(line))
        pid = os.fork()
        if pid == 0:
            try:
                live(order)
            finally:
                sys.excepthook(*sys.exc_info())
                os._exit(1)
        _, status = os.waitpid(pid, 0)
        code = os.waitstatus_to_exitcode(status)
        sys.stdout.write(f"{code}\n")
        sys.stdout.flush()


class Forker:
    """The process, from outside."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    async def live(self, order: Order) -> bool:
        """Whether the box-host died. Raises: AssertionError, when it failed instead."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(asdict(order)).encode() + b"\n")
        async with asyncio.timeout(2 * MOST_SECONDS):
            code = int(await self._process.stdout.readline())
        assert code in (0, -signal.SIGKILL), f"{order.what} ended with {code}"
        return code != 0


@contextlib.asynccontextmanager
async def open_forker() -> AsyncIterator[Forker]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.support.crash.host_process"),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    try:
        yield Forker(process)
    finally:
        assert process.stdin is not None
        process.stdin.close()
        await process.wait()


if __name__ == "__main__":
    main()
