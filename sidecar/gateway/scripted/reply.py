"""What the scripted model answers, before a protocol gives it its form."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import Any, Literal

# Small enough that a client which buffers is seen, large enough to be cheap.
_DELTA_CHARS = 48
_TICK_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class Text:
    text: str


@dataclass(frozen=True, slots=True)
class Thinking:
    text: str


@dataclass(frozen=True, slots=True)
class Ticks:
    """Text that takes `seconds` to arrive."""

    seconds: float


@dataclass(frozen=True, slots=True)
class ManyWords:
    """Text of `count` words, each a delta of its own."""

    count: int


@dataclass(frozen=True, slots=True)
class Call:
    """A call of one of the harness's tools; a string is the program of a free-text tool."""

    name: str
    arguments: Mapping[str, Any] | str


@dataclass(frozen=True, slots=True)
class Failure:
    """An HTTP error instead of an answer."""

    status: int
    message: str


Part = Text | Thinking | Ticks | ManyWords | Call


@dataclass(frozen=True, slots=True)
class Reply:
    parts: tuple[Part, ...]


@dataclass(frozen=True, slots=True)
class Delta:
    """A piece of text; the server waits `pause` seconds after sending it."""

    text: str
    pause: float = 0.0


@dataclass(frozen=True, slots=True)
class Block:
    """Neighbouring parts of one kind, as protocols group them."""

    kind: Literal["text", "thinking", "call"]
    parts: tuple[Part, ...]

    def deltas(self) -> Iterator[Delta]:
        if not self.parts:
            return
        yield from _deltas(self.parts[0])
        for _, part in pairwise(self.parts):
            yield Delta("\n\n")
            yield from _deltas(part)

    def text(self) -> str:
        return "".join(delta.text for delta in self.deltas())

    @property
    def call(self) -> Call:
        [call] = self.parts
        assert isinstance(call, Call)
        return call


def blocks(reply: Reply) -> Iterator[Block]:
    for kind, group in groupby(reply.parts, key=_kind):
        if kind == "call":
            yield from (Block("call", (call,)) for call in group)
        else:
            yield Block(kind, tuple(group))


def seconds(parts: Iterable[Part]) -> float:
    """How long a reply takes when it is not streamed."""
    return sum(part.seconds for part in parts if isinstance(part, Ticks))


def _kind(part: Part) -> Literal["text", "thinking", "call"]:
    if isinstance(part, Call):
        return "call"
    return "thinking" if isinstance(part, Thinking) else "text"


def _deltas(part: Part) -> Iterator[Delta]:
    if isinstance(part, (Text, Thinking)):
        for start in range(0, len(part.text), _DELTA_CHARS):
            yield Delta(part.text[start : start + _DELTA_CHARS])
    elif isinstance(part, ManyWords):
        for number in range(1, part.count + 1):
            yield Delta(f"word-{number}" if number == part.count else f"word-{number} ")
    elif isinstance(part, Ticks):
        count = max(1, round(part.seconds / _TICK_SECONDS))
        for number in range(1, count + 1):
            yield Delta(f"tick {number} of {count}\n", pause=part.seconds / count)
        yield Delta(f"Waited {part.seconds:g} {'second' if part.seconds == 1 else 'seconds'}.")
