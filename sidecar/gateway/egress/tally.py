"""What went through a session's proxy, told once per connection and never without bounds.

The first connection of a kind is told when it ends. Those that repeat it within a turn are added up
and told together when the turn ends: a program that loops must not fill the transcript.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Literal

Verdict = Literal["allowed", "refused"]
Tell = Callable[[dict[str, Any]], object]

# Different hosts, verdicts and reasons that a turn tells apart; what is beyond is one of the rest.
MAX_KINDS = 100
THE_REST = "more hosts than are told apart"
STILL_OPEN = "still open"
# Why a connection ended before its time.
BYTES_SPENT = "this turn has moved as many bytes as it may"
IDLE = "nothing moved for too long"
REVOKED = "not allowed any more"
BROKEN_OFF = "cut off"
FAILED = "an error of the gateway"


@dataclass(frozen=True)
class Kind:
    host: str
    port: int | None
    method: str
    verdict: Verdict
    reason: str = ""


@dataclass
class Counts:
    connections: int = 0
    bytes_up: int = 0
    bytes_down: int = 0

    def add(self, other: Counts) -> None:
        self.connections += other.connections
        self.bytes_up += other.bytes_up
        self.bytes_down += other.bytes_down


class Passage:
    """One connection, from its first byte out. `up` and `down` are bytes on the outer side."""

    def __init__(self) -> None:
        self.host = ""
        self.port: int | None = None
        self.method = ""
        self.up = 0
        self.down = 0
        self._told = Counts()

    def kind(self, verdict: Verdict, reason: str) -> Kind:
        return Kind(self.host, self.port, self.method, verdict, reason)

    def untold(self) -> Counts:
        """What came since the last time; a connection is counted once."""
        new = Counts(
            1 - self._told.connections,
            self.up - self._told.bytes_up,
            self.down - self._told.bytes_down,
        )
        self._told.add(new)
        return new


class Tally:
    def __init__(self, tell: Tell) -> None:
        self._tell: Tell | None = tell
        self._told: set[Kind] = set()
        self._held: dict[Kind, Counts] = {}
        self._open: set[Passage] = set()

    def begin_turn(self) -> None:
        """What is told from now on is of another turn."""
        self.flush()
        self._told.clear()

    def opened(self, passage: Passage) -> None:
        """It leads somewhere: if it is still open when the turn ends, that is told."""
        self._open.add(passage)

    def ended(self, passage: Passage, verdict: Verdict, reason: str = "") -> None:
        self._open.discard(passage)
        kind, counts = passage.kind(verdict, reason), passage.untold()
        if kind in self._told:
            self._hold(kind, counts)
        elif len(self._told) < MAX_KINDS:
            self._told.add(kind)
            self._say(kind, counts)
        else:
            self._hold(Kind("", None, "", verdict, THE_REST), counts)

    def flush(self) -> None:
        """Tell what was held back, and what is still open."""
        for passage in self._open:
            counts = passage.untold()
            if counts != Counts():
                self._hold(passage.kind("allowed", STILL_OPEN), counts)
        for kind, counts in self._held.items():
            self._say(kind, counts)
        self._held.clear()

    def close(self) -> None:
        """Tell the rest, and from then on nothing."""
        self.flush()
        self._tell = None

    def _hold(self, kind: Kind, counts: Counts) -> None:
        self._held.setdefault(kind, Counts()).add(counts)

    def _say(self, kind: Kind, counts: Counts) -> None:
        if self._tell is not None:
            self._tell({**asdict(kind), **asdict(counts)})
