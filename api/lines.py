"""The lines of a run's stream: decoded, numbered, and handed over in batches."""

from __future__ import annotations

import asyncio
import json
import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from contracts.bodies import RunLine
from contracts.errors import HoldfastError, StreamGap
from contracts.events import TURN_END_TYPES, Event, Raw, Receipt, ReceiptFailed, from_dict

# One transaction takes at most this much; what arrives meanwhile is the next one's.
BATCH_LINES = 200
BATCH_BYTES = 8 * 1024 * 1024
BUFFER_BYTES = 16 * 1024 * 1024
# Between a receipt and the end of its turn are a handful of lines.
HELD_LINES = 1000


@dataclass(frozen=True)
class Numbered:
    """An event of a run. `n` is None for a line that stood between two numbers."""

    n: int | None
    event: Event


def _number(text: str) -> float | str:
    """JSON has no infinity, but `1e999` reads as one; PostgreSQL would refuse the whole batch."""
    value = float(text)
    return value if math.isfinite(value) else text


def decode_line(line: bytes) -> RunLine | None:
    """The line, or None when it is malformed."""
    try:
        plain = json.loads(line, parse_float=_number, parse_constant=str)
        return RunLine.model_validate(plain)
    except (ValueError, RecursionError, ValidationError):
        return None


def decode_event(plain: dict[str, Any]) -> Event:
    """The event of a line; its place in the transcript is not the sidecar's to say."""
    own = ("seq", "session_id", "turn_id")
    return from_dict({key: value for key, value in plain.items() if key not in own})


class Numbering:
    """Follows the numbers of one connection to a run.

    A malformed line is held back until the next good one tells whether it took a number of
    its own: so it is stored once, whatever happens to the connection in between.
    """

    def __init__(self, last_n: int) -> None:
        self.last_n = last_n
        self.gap: StreamGap | None = None
        self._held: list[bytes] = []

    def take(self, lines: Sequence[bytes]) -> list[Numbered]:
        """What is new in these lines, in order, up to a gap if there is one.

        `gap` is set when numbers are missing and no malformed line explains it.
        """
        taken: list[Numbered] = []
        for line in lines:
            decoded = decode_line(line)
            if decoded is None:
                self._held.append(line)
                continue
            if decoded.n <= self.last_n:
                continue
            missing = decoded.n - self.last_n - 1
            if missing > len(self._held):
                self.gap = StreamGap(
                    f"The run's stream jumps from line {self.last_n} to {decoded.n}.",
                    hint="Start another turn; what this one did so far is kept.",
                    after=self.last_n,
                    got=decoded.n,
                )
                return taken
            taken += self._release(missing)
            taken.append(Numbered(decoded.n, decode_event(decoded.event)))
            self.last_n = decoded.n
        return taken

    def _release(self, missing: int) -> list[Numbered]:
        """The held lines as `raw` events; the last `missing` of them have numbers."""
        extra = len(self._held) - missing
        released = [
            Numbered(
                self.last_n + 1 + index - extra if index >= extra else None,
                Raw(source="malformed", data=line.decode("utf-8", "backslashreplace")),
            )
            for index, line in enumerate(self._held)
        ]
        self._held.clear()
        return released


class Holding:
    """Holds the lines of a connection back from a receipt on, until the turn's end is there.

    So the receipt is stored with the end, in one transaction. What is held when the connection
    breaks is forgotten: it was not stored, and the next connection brings it again.
    """

    def __init__(self) -> None:
        self.held: list[Numbered] = []

    def take(self, lines: Sequence[Numbered]) -> list[Numbered]:
        """What may be stored now, in order."""
        if not self.held:
            first = next(
                (i for i, line in enumerate(lines) if isinstance(line.event, _VERDICTS)), None
            )
            if first is None:
                return list(lines)
            self.held = list(lines[first:])
            ready = list(lines[:first])
        else:
            self.held += lines
            ready = []
        ended = any(line.event.type in TURN_END_TYPES for line in self.held)
        if ended or len(self.held) > HELD_LINES:
            ready += self.held
            self.held = []
        return ready


_VERDICTS = (Receipt, ReceiptFailed)


class LineBuffer:
    """Between the reader of a stream and the writer to the database: bounded by bytes."""

    def __init__(self) -> None:
        self._lines: deque[bytes] = deque()
        self._bytes = 0
        self._closed = False
        self._error: HoldfastError | None = None
        self._changed = asyncio.Condition()

    async def put(self, line: bytes) -> None:
        """Add a line; waits while the writer is behind."""
        async with self._changed:
            await self._changed.wait_for(lambda: self._bytes < BUFFER_BYTES)
            self._lines.append(line)
            self._bytes += len(line)
            self._changed.notify_all()

    async def close(self, error: HoldfastError | None = None) -> None:
        """No line will follow; `error` says why, when the stream broke."""
        async with self._changed:
            self._closed, self._error = True, error
            self._changed.notify_all()

    async def take(self) -> list[bytes]:
        """All that is there, within a batch's bounds; empty at the end of the stream.

        Raises: the error that the stream ended with, after its last line was taken.
        """
        async with self._changed:
            await self._changed.wait_for(lambda: self._lines or self._closed)
            batch: list[bytes] = []
            size = 0
            while self._lines and len(batch) < BATCH_LINES and size < BATCH_BYTES:
                line = self._lines.popleft()
                size += len(line)
                batch.append(line)
            self._bytes -= size
            self._changed.notify_all()
        if not batch and self._error is not None:
            raise self._error
        return batch
