"""Structured background work beside a body whose own errors stay what they are."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Coroutine
from typing import Any


class Background:
    """Starts tasks that end with the block they belong to."""

    def __init__(self, group: asyncio.TaskGroup) -> None:
        self._group = group
        self.tasks: set[asyncio.Task[Any]] = set()

    def start(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = self._group.create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)
        return task


@contextlib.asynccontextmanager
async def background() -> AsyncIterator[Background]:
    """A TaskGroup that cancels its tasks at the end of the block instead of waiting for them, and
    lets the body's exception through as it is, not wrapped in a group."""
    failure: BaseException | None = None
    async with asyncio.TaskGroup() as group:
        started = Background(group)
        try:
            yield started
        except BaseException as error:  # noqa: BLE001 - raised again below
            failure = error
        for task in list(started.tasks):
            task.cancel()
    if failure is not None:
        raise failure
