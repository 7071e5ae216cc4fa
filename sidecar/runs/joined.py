"""Text that comes in small pieces, joined into events of a readable size.

A secret may be cut in two by the pieces: one that may have begun is held back, with the whole piece
that it begins in, until the next piece or event tells. Whole pieces, because a sidecar that goes on
with the turn hears a piece again, or does not.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable

from contracts import events
from contracts.redaction import Redactor

Emit = Callable[[events.EventBase, int | None], Awaitable[None]]
Piece = events.Message | events.Thought | events.ToolUpdate

COALESCE_SECONDS = 0.05
COALESCE_CHARS = 16_384


def is_piece(event: events.EventBase | None) -> bool:
    """Whether more of the same may follow: text, or output of a tool and no other news of it."""
    if isinstance(event, events.ToolUpdate):
        others = (event.title, event.status, event.input, event.output)
        return event.output_delta is not None and all(other is None for other in others)
    return isinstance(event, events.Message | events.Thought)


class Joined:
    """Pieces of one text, joined for at most COALESCE_SECONDS."""

    def __init__(self, emit: Emit, redactor: Redactor | None = None) -> None:
        self._emit = emit
        self._redactor = redactor or Redactor()
        self._pieces: list[tuple[str, int | None]] = []
        self._chars = 0
        self._held = 0  # so many of them, counted from the first, have been held back
        self._first: Piece | None = None
        self._since = 0.0

    @property
    def wait_for(self) -> float | None:
        """How long more may be waited for; None while there is nothing to join."""
        return COALESCE_SECONDS if len(self._pieces) > self._held else None

    @property
    def due(self) -> bool:
        if len(self._pieces) <= self._held:
            return False
        old = time.monotonic() - self._since >= COALESCE_SECONDS
        return old or self._chars >= COALESCE_CHARS

    async def add(self, event: Piece, number: int | None) -> None:
        if self._first is not None and not _same_text(self._first, event):
            await self.flush()
        if len(self._pieces) <= self._held:
            self._since = time.monotonic()
        self._first = self._first or event
        text = _text(event)
        self._pieces.append((text, number))
        self._chars += len(text)

    async def flush_due(self) -> None:
        """What can be said without the pieces that are still to come."""
        whole = "".join(text for text, _ in self._pieces)
        begun = self._redactor.begun(whole)
        ready, at = len(self._pieces), len(whole)
        while begun < at or self._redactor.divided(whole, at):
            ready -= 1
            at -= len(self._pieces[ready][0])
        self._held = len(self._pieces) - ready
        await self._say(ready)

    async def flush(self) -> None:
        """Everything: something else comes now."""
        self._held = 0
        await self._say(len(self._pieces))
        self._first = None

    async def _say(self, count: int) -> None:
        if self._first is None or not count:
            return
        said, self._pieces = self._pieces[:count], self._pieces[count:]
        whole = self._redactor.text("".join(text for text, _ in said))
        self._chars = sum(len(text) for text, _ in self._pieces)
        name = "output_delta" if isinstance(self._first, events.ToolUpdate) else "text"
        await self._emit(self._first.model_copy(update={name: whole}), said[-1][1])


def _text(event: Piece) -> str:
    return (event.output_delta or "") if isinstance(event, events.ToolUpdate) else event.text


def _same_text(one: Piece, other: Piece) -> bool:
    if isinstance(one, events.ToolUpdate) and isinstance(other, events.ToolUpdate):
        return one.tool_call_id == other.tool_call_id
    return type(one) is type(other)
