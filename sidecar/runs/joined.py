"""Text that comes in small pieces, joined into events of a readable size."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable

from contracts import events

Emit = Callable[[events.EventBase, int | None], Awaitable[None]]

COALESCE_SECONDS = 0.05
COALESCE_CHARS = 16_384


class Joined:
    """Text that comes in small pieces, joined for at most COALESCE_SECONDS."""

    def __init__(self, emit: Emit) -> None:
        self._emit = emit
        self._pieces: list[str] = []
        self._first: events.Message | events.Thought | None = None
        self._number: int | None = None
        self._since = 0.0

    @property
    def holds(self) -> bool:
        return bool(self._pieces)

    @property
    def wait_for(self) -> float | None:
        """How long more may be waited for; None while there is nothing to join."""
        return COALESCE_SECONDS if self.holds else None

    @property
    def due(self) -> bool:
        old = time.monotonic() - self._since >= COALESCE_SECONDS
        return self.holds and (old or sum(map(len, self._pieces)) >= COALESCE_CHARS)

    async def add(self, event: events.Message | events.Thought, number: int) -> None:
        if self._first is not None and type(event) is not type(self._first):
            await self.flush()
        if self._first is None:
            self._first, self._since = event, time.monotonic()
        self._pieces.append(event.text)
        self._number = number

    async def flush(self) -> None:
        if self._first is not None:
            whole = self._first.model_copy(update={"text": "".join(self._pieces)})
            self._first, self._pieces = None, []
            await self._emit(whole, self._number)
