"""A run's events: numbered from 1, on disk before anyone sees them, followed from any number.

In memory is only where each line ends: a harness may say very much, and a sidecar remembers every
run of a day.
"""

from __future__ import annotations

import asyncio
import errno
import json
import logging
import os
from array import array
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from contracts.bodies import RunRequest
from contracts.errors import StreamGap
from contracts.events import TURN_END_TYPES, EventBase, Raw, RunGap, dumps, to_dict
from contracts.redaction import Redactor
from sidecar.record_files import replacing, sync_directory

# A follower that comes late gets this much at a time, and a line in any case.
PART_BYTES = 1 << 20
# Below what the api takes as one line.
MOST_EVENT_BYTES = 32 << 20
SHOWN_CHARS = 65_536
# More than any turn has: a number beyond it is not a line's.
MOST_LINES = 10_000_000
# Between two tries to write a run's end on a disk that is full.
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.5, 15.0

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Entry:
    """One journalled event; `source` is the SSE id it came from, `record` the gateway's record,
    where it has one."""

    n: int
    event: dict[str, Any]
    source: int | None = None
    record: int | None = None


class Journal:
    """One run's file: a line with the request, then a line per event (`RunLine`, and where it came
    from)."""

    def __init__(self, path: Path, request: RunRequest, request_ends: int) -> None:
        self.path = path
        self.request = request
        self.redactor = Redactor()
        self.most_bytes = MOST_EVENT_BYTES
        # line n of the run is between its two neighbours here; line 0 is the request
        self._ends = array("Q", [request_ends])
        self._types: set[str] = set()
        self._last_type = ""
        # The last message of sandbox-agent's stream, and the gateway's last record, that have
        # become an event; 0 if none has.
        self.last_source = 0
        self.last_record = 0
        # The last line that an earlier process wrote, and the last that this one has shown.
        self._found_n = 0
        self._shown_n = 0
        self._durable_n = -1
        self._syncing = asyncio.Lock()
        self._grown = asyncio.Condition()
        self._released = False

    @classmethod
    def create(cls, directory: Path, request: RunRequest) -> Journal:
        directory.mkdir(parents=True, exist_ok=True)
        path = directory / f"{request.turn_id}.ndjson"
        first = dumps(request.model_dump(mode="json")) + b"\n"
        journal = cls(path, request, len(first))
        journal._write(first, before=0)
        return journal

    @classmethod
    def load(cls, path: Path) -> Journal:
        """What an earlier process wrote; a torn last line is cut, as it was shown to nobody."""
        with path.open("rb+") as file:
            first = file.readline()
            journal = cls(path, RunRequest.model_validate_json(first), len(first))
            for line in file:
                # A power cut may leave zeros in place of what was not on disk yet.
                if not line.endswith(b"\n") or b"\0" in line:
                    file.truncate(journal._ends[-1])
                    break
                entry = Entry(**json.loads(line))
                journal._skip_to(entry.n - 1)
                journal._note(entry, len(line))
        journal._found_n = journal.last_n
        if journal.ended:
            journal.close()
        return journal

    def close(self) -> None:
        """The run has ended: what it was asked need not be remembered any more."""
        self.request = self.request.model_copy(update={"prompt": "", "past": []})

    @property
    def last_n(self) -> int:
        return len(self._ends) - 1

    @property
    def size(self) -> int:
        """What all events take together."""
        return self._ends[-1] - self._ends[0]

    @property
    def ended(self) -> bool:
        return self._last_type in TURN_END_TYPES

    def has(self, event_type: str) -> bool:
        """Whether there is such an event."""
        return event_type in self._types

    def entries(self) -> Iterator[Entry]:
        """Every event, read from disk."""
        with self.path.open("rb") as file:
            file.seek(self._ends[0])
            while file.tell() < self._ends[-1]:
                yield Entry(**json.loads(file.readline()))

    async def append(
        self, event: EventBase, source: int | None = None, record: int | None = None
    ) -> None:
        """Write an event down. Secrets that are known are masked; what is larger than any reader
        takes is cut, and says so."""
        line = self._line(event, source, record)
        if len(line) > self.most_bytes:
            event = _cut(event, len(line))
            line = self._line(event, source, record)
        self._write(line, before=self._ends[-1])
        # before anything is waited for: a line whose writer was cancelled keeps its number
        kind = {"type": getattr(event, "type", "")}
        self._note(Entry(self.last_n + 1, kind, source, record), len(line))
        async with self._grown:
            self._grown.notify_all()

    async def append_end(self, event: EventBase) -> None:
        """Write the run's last event, however long the disk takes to have room for it. A run
        without an end would be waited for until the sidecar is started again."""
        pause = FIRST_PAUSE_SECONDS
        while not self.ended:
            try:
                await self.append(event)
            except OSError as error:
                log.error(  # noqa: TRY400 - tried again, the same each time
                    "cannot write the end of run %s, trying again in %g s: %s",
                    self.request.turn_id,
                    pause,
                    error,
                )
                await asyncio.sleep(pause)
                pause = min(2 * pause, LONGEST_PAUSE_SECONDS)

    def _line(self, event: EventBase, source: int | None, record: int | None) -> bytes:
        request = self.request
        place = {"session_id": request.session_id, "turn_id": request.turn_id}
        placed = event.model_copy(update={**place, "at": datetime.now(UTC)})
        plain = {"n": self.last_n + 1, "event": to_dict(placed), "source": source}
        line = dumps(plain if record is None else {**plain, "record": record})
        return self.redactor.line(line) + b"\n"

    async def meet_reader(self, stored: int) -> None:
        """A reader has every line up to number `stored`. When the file has lost some of them, to a
        power cut or because an older one was put back, what was written since then is numbered
        anew: no number may stand for two events. An event says so.

        Raises: StreamGap, when `stored` is beyond all reason; OSError.
        """
        if stored <= max(self._found_n, self._shown_n):
            return
        lost = stored - self._found_n
        if lost > MOST_LINES:
            raise StreamGap(f"a run has no line {stored}")
        log.error("run %s lost %d lines of its journal", self.request.turn_id, lost)
        self._renumber(stored, lost)
        async with self._grown:
            self._grown.notify_all()

    def _renumber(self, stored: int, lost: int) -> None:
        gap = RunGap(lines=lost, reason="what happened then may be told twice or not at all")
        kept = self._ends[self._found_n]
        since = self._read(self._found_n, self.last_n).splitlines()
        ends = self._ends[: self._found_n + 1]
        ends.extend([kept] * lost)
        with self.path.open("rb") as old, replacing(self.path) as new:
            while part := old.read(min(PART_BYTES, kept - old.tell())):
                new.write(part)
            lines = [self._line(gap, None, None), *since]
            for n, line in enumerate(lines, start=stored + 1):
                size = new.write(dumps({**json.loads(line), "n": n}) + b"\n")
                ends.append(ends[-1] + size)
        self._ends, self._found_n = ends, stored
        self._types.add(gap.type)
        self._last_type = self._last_type if since else gap.type

    def _skip_to(self, n: int) -> None:
        """No line has a number from the next one up to `n`. Raises: ValueError."""
        if not 0 <= n - self.last_n <= MOST_LINES:
            raise ValueError(f"line {n + 1} follows line {self.last_n}")
        self._ends.extend([self._ends[-1]] * (n - self.last_n))

    def _note(self, entry: Entry, size: int) -> None:
        self._ends.append(self._ends[-1] + size)
        self._last_type = entry.event["type"]
        self._types.add(self._last_type)
        self.last_source = max(self.last_source, entry.source or 0)
        self.last_record = max(self.last_record, entry.record or 0)

    async def follow(self, after: int) -> AsyncIterator[bytes]:
        """Lines after number `after`, as they come, until the run has ended or followers are
        released."""
        while True:
            while after < self.last_n:
                upto = self._part(after)
                try:
                    await self._make_durable(upto)
                    part = self._read(after, upto)
                except FileNotFoundError:  # its session is being deleted
                    return
                after = upto
                self._shown_n = max(self._shown_n, upto)
                if part:
                    yield part
            if self.ended or self._released:
                return
            async with self._grown:
                while self.last_n <= after and not (self.ended or self._released):
                    await self._grown.wait()

    async def release_followers(self) -> None:
        """End every stream now: this process stops, and the run goes on without it."""
        self._released = True
        async with self._grown:
            self._grown.notify_all()

    async def _make_durable(self, upto: int) -> None:
        """What was shown must not be lost with the machine: its number would be given again. One
        call for all that was written meanwhile, and beside the loop. Raises: OSError."""
        async with self._syncing:
            if upto <= self._durable_n:
                return
            written = self.last_n
            await asyncio.to_thread(self._sync, named=self._durable_n >= 0)
            self._durable_n = written

    def _sync(self, *, named: bool) -> None:
        fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fdatasync(fd)
        finally:
            os.close(fd)
        if not named:
            sync_directory(self.path.parent)

    def _part(self, after: int) -> int:
        """The last line of the part that begins behind line `after`."""
        upto = after + 1
        while upto < self.last_n and self._ends[upto + 1] - self._ends[after] <= PART_BYTES:
            upto += 1
        return upto

    def _read(self, after: int, upto: int) -> bytes:
        begin, end = self._ends[after], self._ends[upto]
        with self.path.open("rb") as file:
            file.seek(begin)
            return file.read(end - begin)

    def _write(self, data: bytes, before: int) -> None:
        """Raises: OSError; then the file is as it was `before`, a number of bytes."""
        with self.path.open("ab", buffering=0) as file:
            if file.write(data) != len(data):
                file.truncate(before)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.path))


def _cut(event: EventBase, size: int) -> Raw:
    """What is kept of an event that is too large: what it was, and how it begins."""
    plain = to_dict(event)
    return Raw(
        source="too_large",
        data={
            "type": plain.get("type"),
            "tool_call_id": str(plain.get("tool_call_id", ""))[:1000],
            "bytes": size,
            "begins": dumps(plain)[:SHOWN_CHARS].decode("ascii"),
        },
    )
