"""An api that dies at a chosen call to the outside: before the call is sent, or when it has had its
effect and the answer was not read.

After its death nothing of it reaches the outside any more, whatever its code tries, and PostgreSQL
sees its connections break, as it would of a killed process.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextvars import ContextVar
from typing import Any, TypeVar
from unittest import mock

import asyncpg
from aiobotocore.client import AioBaseClient

from api.sidecar import Sidecar

T = TypeVar("T")

# In the tasks of the process that may die, and of those in the ones whose calls are counted.
_process: ContextVar[Killing | None] = ContextVar("process", default=None)
_counted: ContextVar[bool] = ContextVar("counted", default=False)

STATEMENTS = (
    *("execute", "executemany", "fetch", "fetchrow", "fetchval", "copy_from_query"),
    "copy_to_table",
)
# How a statement begins, or the name of an operation of S3, that changes nothing.
READS = ("SELECT", "SHOW", "Get", "Head", "List")
# A process that neither dies nor comes to its end.
MOST_SECONDS = 60
# For whoever must hear of a cut.
CUT_SECONDS = 5
POLL_SECONDS, TRIES = 0.02, 500


class Killed(BaseException):
    """As SIGKILL, at the place where it is raised."""


class Killing:
    """Kills a process at its `at`-th point; when `only` is given, at calls that begin so."""

    def __init__(self, at: int, only: tuple[str, ...] = ("",)) -> None:
        self._at = at
        self.only = only
        self._points = 0
        self.dead = False
        self._connections: set[asyncpg.Connection[Any]] = set()
        self._tasks: set[asyncio.Task[Any]] = set()

    def point(self, *, reads: bool = False) -> None:
        """A place to die at. None is at a call that only `reads`: it changes nothing outside, so
        that to die there is to die at the one before."""
        if self.dead:
            raise Killed
        if _counted.get() and not reads:
            self._points += 1
            if self._points == self._at:
                self._die()

    def _die(self) -> None:
        self.dead = True
        for connection in self._connections:
            connection.terminate()
        raise Killed

    def know(self, connection: asyncpg.Connection[Any]) -> None:
        """Raises: Killed: a dead process connects to nothing."""
        if self.dead:
            connection.terminate()
            raise Killed
        self._connections.add(connection)

    async def run(self, life: Callable[[T], Awaitable[None]], subject: T) -> bool:
        """Whether the process died. Everything that `life` starts is part of the process."""

        async def lived() -> None:
            _process.set(self)
            async with asyncio.timeout(MOST_SECONDS):
                await life(subject)

        with _intercepting(), self._noting_tasks():
            main = asyncio.create_task(lived())
            while not main.done() and not self.dead:
                await asyncio.wait({main}, timeout=POLL_SECONDS)
            if self.dead:
                await self._bury(main)
            else:
                await main
        return self.dead

    async def _bury(self, main: asyncio.Task[None]) -> None:
        """End every task. One that a connection broke under may not hear it the first time."""
        for _ in range(TRIES):
            left = {task for task in (*self._tasks, main) if not task.done()}
            if not left:
                break
            for task in left:
                task.cancel()
            await asyncio.wait(left, timeout=POLL_SECONDS)
        for task in (*self._tasks, main):
            assert task.done(), task
            if not task.cancelled():
                task.exception()  # whatever it is, nobody is there to hear of it

    @contextlib.contextmanager
    def _noting_tasks(self) -> Iterator[None]:
        def make(loop: asyncio.AbstractEventLoop, coro: Any, **more: Any) -> asyncio.Task[Any]:
            task = asyncio.Task(coro, loop=loop, **more)
            if _process.get() is self:
                self._tasks.add(task)
                if not self.dead:
                    task.add_done_callback(self._forget)
            return task

        loop = asyncio.get_running_loop()
        before = loop.get_task_factory()
        loop.set_task_factory(make)
        try:
            yield
        finally:
            loop.set_task_factory(before)

    def _forget(self, task: asyncio.Task[Any]) -> None:
        if not self.dead:
            self._tasks.discard(task)


class Cutting:
    """Calls `cut` at the `at`-th point of the calls that change a bucket: before one, or when it
    has had its effect. The call then takes until it is cancelled, or goes on."""

    def __init__(self, bucket: str, at: int, cut: Callable[[], None]) -> None:
        self._bucket = bucket
        self._at = at
        self._cut = cut
        self._points = 0
        self.happened = False

    async def _point(self) -> None:
        self._points += 1
        if self._points == self._at:
            self.happened = True
            self._cut()
            await asyncio.sleep(CUT_SECONDS)

    @contextlib.contextmanager
    def intercepting(self) -> Iterator[None]:
        inner = AioBaseClient._make_api_call  # type: ignore[attr-defined]

        async def call(client: Any, operation: str, arguments: dict[str, Any]) -> Any:
            if operation.startswith(READS) or arguments["Bucket"] != self._bucket:
                return await inner(client, operation, arguments)
            await self._point()
            answer = await inner(client, operation, arguments)
            await self._point()
            return answer

        with mock.patch.object(AioBaseClient, "_make_api_call", call):
            yield


@contextlib.contextmanager
def counted() -> Iterator[None]:
    """Points are where the block, and tasks that it starts, call the outside."""
    token = _counted.set(True)
    try:
        yield
    finally:
        _counted.reset(token)


@contextlib.contextmanager
def _intercepting() -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        for name in STATEMENTS:
            statement = _around(getattr(asyncpg.Connection, name))
            stack.enter_context(mock.patch.object(asyncpg.Connection, name, statement))
        close = _close_or_terminate(asyncpg.Pool.close)
        stack.enter_context(mock.patch.object(asyncpg.Pool, "close", close))
        call = _around(AioBaseClient._make_api_call)  # type: ignore[attr-defined]
        stack.enter_context(mock.patch.object(AioBaseClient, "_make_api_call", call))
        ask = _around_block(Sidecar._open)
        stack.enter_context(mock.patch.object(Sidecar, "_open", ask))
        yield


def _around(inner: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    async def call(self: Any, *args: Any, **more: Any) -> Any:
        process = _process.get()
        if process is None:
            return await inner(self, *args, **more)
        if isinstance(self, asyncpg.Connection):
            process.know(self)
        name = str(args[0]).lstrip()
        reads = name.startswith(READS) or not name.startswith(process.only)
        process.point(reads=reads)
        answer = await inner(self, *args, **more)
        process.point(reads=reads)
        return answer

    return call


def _close_or_terminate(
    close: Callable[[Any], Awaitable[None]],
) -> Callable[[Any], Awaitable[None]]:
    async def end(self: Any) -> None:
        process = _process.get()
        if process is not None and process.dead:
            self.terminate()  # it would wait for whoever has a connection
        else:
            await close(self)

    return end


def _around_block(
    inner: Callable[..., contextlib.AbstractAsyncContextManager[Any]],
) -> Callable[..., contextlib.AbstractAsyncContextManager[Any]]:
    @contextlib.asynccontextmanager
    async def block(self: Any, *args: Any, **more: Any) -> AsyncIterator[Any]:
        process = _process.get()
        reads = args[0] == "GET"
        if process is not None:
            process.point(reads=reads)
        async with inner(self, *args, **more) as answer:
            if process is not None:
                process.point(reads=reads)
            yield answer

    return block
