"""A run's events: numbered from 1, on disk before anyone sees them, followed from any number."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from contracts.bodies import RunLine, RunRequest
from contracts.events import TURN_END_TYPES, EventBase, dumps, to_dict


@dataclass(frozen=True)
class Entry:
    """One journalled event; `source` is the SSE id it came from, where it has one."""

    n: int
    event: dict[str, Any]
    source: int | None = None

    def line(self) -> bytes:
        return dumps(RunLine(n=self.n, event=self.event).model_dump()) + b"\n"


class Journal:
    """One run's file: a line with the request, then a line per event."""

    def __init__(self, path: Path, request: RunRequest, entries: list[Entry]) -> None:
        self.path = path
        self.request = request
        self._entries = entries
        self._grown = asyncio.Condition()

    @classmethod
    def create(cls, directory: Path, request: RunRequest) -> Journal:
        directory.mkdir(parents=True, exist_ok=True)
        path = directory / f"{request.turn_id}.ndjson"
        journal = cls(path, request, [])
        journal._write(dumps(request.model_dump(mode="json")) + b"\n")
        return journal

    @classmethod
    def load(cls, path: Path) -> Journal:
        """What an earlier process wrote; a torn last line is cut, as it was shown to nobody."""
        whole = path.read_bytes()
        kept = whole[: whole.rfind(b"\n") + 1]
        if len(kept) != len(whole):
            path.write_bytes(kept)
        first, *rest = kept.splitlines()
        request = RunRequest.model_validate_json(first)
        return cls(path, request, [Entry(**json.loads(line)) for line in rest])

    @property
    def last_n(self) -> int:
        return len(self._entries)

    @property
    def entries(self) -> Sequence[Entry]:
        return self._entries

    @property
    def last_source(self) -> int:
        """The last message of sandbox-agent's stream that has become an event; 0 if none has."""
        return max((entry.source for entry in self._entries if entry.source), default=0)

    @property
    def ended(self) -> bool:
        return bool(self._entries) and self._entries[-1].event["type"] in TURN_END_TYPES

    async def append(self, event: EventBase, source: int | None = None) -> None:
        request = self.request
        place = {"session_id": request.session_id, "turn_id": request.turn_id}
        placed = event.model_copy(update={**place, "at": datetime.now(UTC)})
        entry = Entry(self.last_n + 1, to_dict(placed), source)
        self._write(dumps({"n": entry.n, "event": entry.event, "source": source}) + b"\n")
        async with self._grown:
            self._entries.append(entry)
            self._grown.notify_all()

    async def follow(self, after: int) -> AsyncIterator[bytes]:
        """Lines after number `after`, as they come, until the run has ended."""
        while True:
            ready = b"".join(entry.line() for entry in self._entries[after:])
            after = max(after, self.last_n)
            if ready:
                yield ready
            if self.ended:
                return
            async with self._grown:
                while self.last_n <= after:
                    await self._grown.wait()

    def _write(self, data: bytes) -> None:
        with self.path.open("ab") as file:
            file.write(data)
