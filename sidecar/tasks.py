"""Structured background work beside a body whose own errors stay what they are."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Coroutine, Sequence
from typing import Any, TypeVar

T = TypeVar("T")


class Background:
    """Starts tasks that end with the block they belong to."""

    def __init__(self) -> None:
        self.tasks: set[asyncio.Task[Any]] = set()

    def start(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = asyncio.create_task(work)
        self.tasks.add(task)
        return task

    async def end(self) -> None:
        """Cancel what still runs, and wait for it."""
        for task in self.tasks:
            task.cancel()
        if self.tasks:
            await asyncio.wait(self.tasks)


@contextlib.asynccontextmanager
async def background() -> AsyncIterator[Background]:
    """Tasks beside a body that awaits some of them and outlives none.

    Not a TaskGroup: that one answers a failed task by cancelling the body and wraps every error in
    a group, while here a failure is the body's to await. One that nobody awaited is raised at the
    end of the block.
    """
    tasks = Background()
    try:
        yield tasks
    finally:
        await tasks.end()
    for task in tasks.tasks:
        if not task.cancelled() and (error := task.exception()) is not None:
            raise error


async def finish(work: Coroutine[Any, Any, None], bound: float) -> None:
    """Run a cleanup to its end although the caller is cancelled meanwhile.

    Raises: TimeoutError, after `bound` seconds.
    """

    async def bounded() -> None:
        async with asyncio.timeout(bound):
            await work

    task = asyncio.create_task(bounded())
    cancelled = False
    while not task.done():
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError:
            cancelled = True
    if cancelled:
        raise asyncio.CancelledError
    await task


async def at_a_time(most: int, work: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
    """All of it, in order, `most` at a time. Raises: what the first of them raises that fails,
    when the others have ended."""
    turnstile = asyncio.Semaphore(most)

    async def one(each: Coroutine[Any, Any, T]) -> T:
        async with turnstile:
            return await each

    results = await asyncio.gather(*map(one, work), return_exceptions=True)
    done: list[T] = []
    for result in results:
        if isinstance(result, BaseException):
            raise result
        done.append(result)
    return done
