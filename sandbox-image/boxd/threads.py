"""Threads for calls that may hang: a look at /proc, a file of a dead mount, the start of a program.

Not asyncio's own pool: one that hung calls have used up must not hold up other work, nor the end of
boxd. Some threads are started at once, because a fork bomb leaves no room for another one.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable
from typing import Any, TypeVar

from asked import Refused

Result = TypeVar("Result")
MOST_THREADS = 16


class Threads:
    def __init__(self, name: str, kept: int = 1, most: int = MOST_THREADS) -> None:
        self._name = name
        self._most = most
        self._jobs: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._started = 0
        self._busy = 0  # counted in the event loop, with what waits for a thread
        for _ in range(kept):
            self._add()

    async def run(
        self,
        call: Callable[[], Result],
        within: float | None = None,
        late: Callable[[Result], None] | None = None,
    ) -> Result:
        """What `call` returns. When it is given up, because it takes longer than `within` seconds
        or the caller is cancelled, its thread is left to it; what it returns in the end goes to
        `late`.

        Raises: Refused, when it takes too long; whatever `call` raises.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Result] = loop.create_future()

        def finish(result: Any, error: BaseException | None) -> None:
            self._busy -= 1
            if not future.done():
                if error is None:
                    future.set_result(result)
                else:
                    future.set_exception(error)
            elif error is None and late is not None and result is not None:
                late(result)

        def work() -> None:
            result, error = None, None
            try:
                if not future.cancelled():
                    result = call()
            except BaseException as raised:  # noqa: BLE001 - it is the caller's
                error = raised
            loop.call_soon_threadsafe(finish, result, error)

        self._busy += 1
        self._jobs.put(work)
        if self._busy > self._started < self._most:
            self._add()
        done, _ = await _wait(future, within)
        if not done:
            raise Refused(f"no answer from the kernel in {within:g} s", "hang")
        return future.result()

    def _add(self) -> None:
        try:
            threading.Thread(target=self._serve, name=self._name, daemon=True).start()
        except RuntimeError:  # no room for another one: those that are there must do
            return
        self._started += 1

    def _serve(self) -> None:
        while True:
            self._jobs.get()()


async def _wait(future: asyncio.Future[Any], within: float | None) -> Any:
    """As asyncio.wait; who is given up is cancelled."""
    try:
        return await asyncio.wait({future}, timeout=within)
    finally:
        future.cancel()
