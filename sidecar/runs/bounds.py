"""How much one turn's harness may say, and how fast. It is not trusted: one that floods is slowed
down, which no other session notices, and past a bound its turn fails."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from contracts.errors import TurnLimit
from contracts.events import EventBase
from sidecar.runs.journal import MOST_EVENT_BYTES, Journal

# So many seconds' worth may come at once before the pace is felt.
BURST_SECONDS = 10.0
# Most messages of a harness become no event of their own: pieces of text are joined.
MESSAGES_PER_EVENT = 10
# What counts as one event more: large ones cost time as well.
BYTES_PER_EVENT = 64 << 10


@dataclass(frozen=True)
class Bounds:
    """`events_per_second` is the pace that a flood is slowed down to; the others end the turn,
    but for `event_bytes`, beyond which an event is cut and says so."""

    events_per_second: float = 200.0
    event_bytes: int = MOST_EVENT_BYTES
    turn_events: int = 200_000
    turn_bytes: int = 512 << 20
    turn_seconds: float = 24 * 3600.0


class Pace:
    """A bucket of tokens that fills at a rate. What is spent beyond it is waited for."""

    def __init__(self, rate: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._rate = rate
        self._clock = clock
        self._most = rate * BURST_SECONDS
        self._tokens = self._most
        self._at = clock()

    def spend(self, tokens: float) -> float:
        """How long to wait before more is spent."""
        now = self._clock()
        self._tokens = min(self._most, self._tokens + (now - self._at) * self._rate) - tokens
        self._at = now
        return max(0.0, -self._tokens / self._rate)


class Flow:
    """What a harness says, on its way into the journal of its turn."""

    def __init__(
        self,
        journal: Journal,
        bounds: Bounds | None = None,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        self._journal = journal
        self.bounds = bounds or Bounds()
        self._sleep = sleep
        self._events = Pace(self.bounds.events_per_second)
        self._messages = Pace(self.bounds.events_per_second * MESSAGES_PER_EVENT)
        self._hurried = False
        journal.most_bytes = self.bounds.event_bytes

    def hurry(self) -> None:
        """Nothing more is to come than what has: the pace does not matter any more."""
        self._hurried = True

    async def heard(self, bytes_in_all: int) -> None:
        """A message has come, whether it becomes an event or not. Raises: TurnLimit."""
        if bytes_in_all > self.bounds.turn_bytes:
            raise _too_much(f"{self.bounds.turn_bytes} bytes", "HOLDFAST_TURN_BYTES")
        await self._wait(self._messages.spend(1))

    async def emit(self, event: EventBase, source: int | None = None) -> None:
        """Journal an event of the harness. Raises: TurnLimit, with the event kept."""
        before = self._journal.size
        await self._journal.append(event, source)
        size = self._journal.size - before
        if self._journal.last_n > self.bounds.turn_events:
            raise _too_much(f"{self.bounds.turn_events} events", "HOLDFAST_TURN_EVENTS")
        if self._journal.size > self.bounds.turn_bytes:
            raise _too_much(f"{self.bounds.turn_bytes} bytes of events", "HOLDFAST_TURN_BYTES")
        await self._wait(self._events.spend(1 + size / BYTES_PER_EVENT))

    async def _wait(self, seconds: float) -> None:
        if seconds > 0 and not self._hurried:
            await self._sleep(seconds)


def _too_much(what: str, setting: str) -> TurnLimit:
    return TurnLimit(
        f"the harness said more than {what} in one turn",
        hint=f"What it said up to then is kept. {setting} is the limit.",
    )
