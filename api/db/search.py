"""The words of a transcript: which text of an event can be found, and how it is looked for."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from uuid import UUID

from contracts.bodies import Match
from contracts.events import EventBase, Message, Thought, ToolCall, ToolResult

if TYPE_CHECKING:
    from api.db.pool import Connection

# What is longer is found by its beginning only: a command's output may be megabytes.
MOST_CHARS = 8192
# A piece of text that ends in the middle of a word hands it on to the next; no word is longer.
MOST_TAIL = 64
MOST_WORDS = 10
# Letters and digits of any script. PostgreSQL's own parser would keep `src/main.py` as one word.
WORD = re.compile(r"[^\W_]+")
LAST_WORD = re.compile(r"[^\W_]+\Z")
AROUND = 80
# A hit in an event that is bigger is told without its text.
MOST_SHOWN_BYTES = 256 * 1024


def text_of(event: EventBase) -> str:
    """The text by which an event can be found, within bounds; empty for most kinds."""
    match event:
        case Message() | Thought():
            return event.text[:MOST_CHARS]
        case ToolCall():
            return "\n".join(_within(MOST_CHARS, [event.title, *_strings(event.input)]))
        case ToolResult():
            return event.output[:MOST_CHARS]
        case _:
            return ""


def _within(most: int, texts: Sequence[str]) -> Iterator[str]:
    for text in texts:
        yield text[:most]
        most -= len(text)
        if most <= 0:
            return


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for each in value.values():
            yield from _strings(each)
    elif isinstance(value, list):
        for each in value:
            yield from _strings(each)


def words(text: str) -> str:
    """The words of a text, as they are stored and looked for."""
    return " ".join(WORD.findall(text)).lower()


@dataclass(frozen=True)
class Tail:
    """How the text of a turn ended: pieces of the same speaker join to one text."""

    speaker: str = ""
    word: str = ""

    @classmethod
    def parse(cls, stored: str) -> Tail:
        return cls(*stored.split(" ", 1)) if stored else cls()

    def __str__(self) -> str:
        return f"{self.speaker} {self.word}" if self.word else ""

    def join(self, event: EventBase, text: str) -> tuple[str, Tail]:
        """The text with the beginning of its first word, and how it ends itself."""
        speaker = _speaker(event)
        if not speaker:
            return text, Tail()
        if speaker == self.speaker and self.word:
            text = self.word + text
        last = LAST_WORD.search(text)
        kept = last is not None and len(last[0]) <= MOST_TAIL
        return text, Tail(speaker, last[0]) if last is not None and kept else Tail()


def _speaker(event: EventBase) -> str:
    if isinstance(event, Message):
        return f"message.{event.role}"
    return "thought" if isinstance(event, Thought) else ""


@dataclass(frozen=True)
class Sought:
    """What somebody looks for, word by word: in the transcript, and in the title."""

    queries: list[str]
    likes: list[str]
    texts: list[str]


NOTHING = Sought([], [], [])


def sought(text: str) -> Sought:
    """Each word of a search: a tsquery for the beginning of a word, and a pattern for LIKE."""
    asked = text.split()[:MOST_WORDS]
    escaped = [re.sub(r"([\\%_])", r"\\\1", word) for word in asked]
    return Sought([_query(word) for word in asked], [f"%{word}%" for word in escaped], asked)


def _query(word: str) -> str:
    """`main.py` is looked for as `main` followed by something that begins with `py`."""
    parts = [f"'{part}'" for part in WORD.findall(word.lower())]
    return " <-> ".join(parts) + ":*" if parts else ""


# The newest event of each session that has one of the words.
HITS = """
SELECT DISTINCT ON (e.session_id) e.session_id, e.seq,
       CASE WHEN e.size <= $3 THEN e.body END AS body
FROM events e
WHERE e.session_id = ANY($1::uuid[]) AND e.words IS NOT NULL
  AND e.words @@ ANY(SELECT to_tsquery('simple', q) FROM unnest($2::text[]) AS q WHERE q <> '')
ORDER BY e.session_id, e.seq DESC
"""


async def matches(
    conn: Connection, sessions: Sequence[UUID], looked_for: Sought
) -> dict[UUID, Match]:
    """Where in the transcripts of these sessions it was found; not all have it there."""
    rows = await conn.fetch(HITS, sessions, looked_for.queries, MOST_SHOWN_BYTES)
    return {
        row["session_id"]: Match(seq=row["seq"], text=_excerpt(row["body"], looked_for))
        for row in rows
    }


def _excerpt(body: bytes | None, looked_for: Sought) -> str:
    if body is None:
        return ""
    plain = json.loads(body)
    text = "\n".join(_strings([plain.get(key) for key in ("text", "title", "input", "output")]))
    low = text.lower()
    places = [low.find(word.lower()) for word in looked_for.texts]
    at = min((place for place in places if place >= 0), default=0)
    begin, end = max(0, at - AROUND), at + AROUND
    cut = " ".join(text[begin:end].split())
    return ("…" if begin else "") + cut + ("…" if end < len(text) else "")
