"""What the gateway notes of a session for the sidecar to tell: a log per session, on disk, so that
neither side loses or doubles anything when it is started again.

The sidecar reads with `after`, keeps what it read, and says up to where it has: that is forgotten.
A log also holds the session's terms, what the session has spent, and which requests are on their
way, so that a gateway that was killed can say of each that it was cut off.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import io
import json
import logging
import os
import time
from collections import Counter, deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import UUID

from contracts.bodies import GatewayRecord, GatewayRecords, Spent, Terms
from contracts.events import dumps
from sidecar.record_files import replacing, sweep_records

logger = logging.getLogger(__name__)

# Beside the directories of the sessions' sockets and not in them: those are bound into containers.
DIRECTORY = ".records"
# What nobody takes is not kept for ever: code in a sandbox can make records at will.
MAX_RECORDS = 4096
MAX_DATA_BYTES = 4096
PAGE = 500
# A log is written anew, with what still counts, when it has grown by this much since it was.
REWRITE_BYTES = 256 * 1024

USAGE = "usage"  # the kind that counts as spent
EGRESS = "egress"
DROPPED = "records.dropped"
CUT_OFF = "model.lost"


@dataclass(frozen=True)
class Limits:
    """How many records one session's log holds, and how far its file grows in between."""

    records: int = MAX_RECORDS
    rewrite_bytes: int = REWRITE_BYTES


DEFAULT_LIMITS = Limits()


class SessionLog:
    """One session's records. Nothing here waits but `wait`: a record is on disk when `add`
    returns."""

    def __init__(self, path: Path, limits: Limits) -> None:
        self._path = path
        self._limits = limits
        self._records: deque[GatewayRecord] = deque()
        self._last = 0
        self._open: dict[int, dict[str, Any]] = {}
        self._written = 0
        self._changed = asyncio.Event()
        self._removed = False
        self.terms = Terms()
        self.spent = Spent()

    @classmethod
    def load(cls, path: Path, limits: Limits = DEFAULT_LIMITS) -> SessionLog:
        """What an earlier gateway left, if it left anything; its open requests have ended with it.
        A torn last line is left out: whoever wrote it did not get to use it."""
        log = cls(path, limits)
        with contextlib.suppress(FileNotFoundError):
            for line in path.read_bytes().splitlines():
                log._replay(line)
        # From the clock: they grow also when the directory was lost in between.
        log._last = max(log._last, time.time_ns() // 1000)
        lost = list(log._open.values())
        log._open.clear()
        for about in lost:
            log._keep(CUT_OFF, about)
        log._rewrite()
        return log

    @property
    def last(self) -> int:
        return self._last

    @property
    def open(self) -> int:
        """How many requests are on their way."""
        return len(self._open)

    def add(self, kind: str, data: Mapping[str, Any]) -> int:
        """Note something; its id. Data that is too big is cut down to a note that it was."""
        record = self._keep(kind, data)
        self._write(_line(record))
        self._bound()
        return record.id

    def began(self, about: Mapping[str, Any]) -> int:
        """A request is on its way; if the gateway dies meanwhile, `about` is recorded."""
        self._last += 1
        self._open[self._last] = dict(about)
        self._write(dumps({"began": self._last, "about": about}))
        return self._last

    def ended(self, request: int, *records: tuple[str, Mapping[str, Any]]) -> None:
        """The request has ended, and this is to be said of it; both or neither is on disk."""
        self._open.pop(request, None)
        kept = [self._keep(kind, data) for kind, data in records]
        self._write(
            dumps({"ended": request, "records": [each.model_dump(mode="json") for each in kept]})
        )
        self._bound()

    def agree(self, terms: Terms) -> None:
        """Take over what these terms name."""
        named = {name: getattr(terms, name) for name in terms.model_fields_set}
        spent = named.pop("spent", None)
        if spent is not None:
            self.spent = Spent(
                tokens=max(self.spent.tokens, spent.tokens), cost=max(self.spent.cost, spent.cost)
            )
        self.terms = self.terms.model_copy(update=named)
        self._write(self._state())

    def taken(self, upto: int) -> None:
        """Forget the records up to this id: they are kept elsewhere."""
        if self._records and self._records[0].id <= upto:
            self._forget(upto)
            self._write(dumps({"taken": upto}))

    def after(self, number: int) -> GatewayRecords:
        newer = [record for record in self._records if record.id > number]
        return GatewayRecords(records=newer[:PAGE], last=self._last, open=self.open)

    async def wait(self, after: int, seconds: float, *, idle: bool = False) -> GatewayRecords:
        """As soon as there is a record, or with `idle` no request on its way; else after
        `seconds`."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while not self._has(after, idle=idle):
                    await self._changed.wait()
        return self.after(after)

    def remove(self) -> None:
        """For good: a request that ends later leaves no file behind."""
        self._removed = True
        self._path.unlink(missing_ok=True)

    def _has(self, after: int, *, idle: bool) -> bool:
        if idle:
            return not self._open
        return bool(self._records) and self._records[-1].id > after

    def _bound(self) -> None:
        if len(self._records) > self._limits.records:
            self._drop()
        self._changed.set()
        self._changed = asyncio.Event()

    def _keep(self, kind: str, data: Mapping[str, Any]) -> GatewayRecord:
        plain = dict(data)
        if len(dumps(plain)) > MAX_DATA_BYTES:
            plain = {"cut": True}
        self._last += 1
        record = GatewayRecord(id=self._last, at=datetime.now(UTC), kind=kind, data=plain)
        self._admit(record)
        return record

    def _admit(self, record: GatewayRecord) -> None:
        self._last = max(self._last, record.id)
        self._records.append(record)
        if record.kind == USAGE:
            tokens = record.data.get("input_tokens", 0) + record.data.get("output_tokens", 0)
            cost = record.data.get("cost") or 0.0
            self.spent = Spent(tokens=self.spent.tokens + tokens, cost=self.spent.cost + cost)

    def _drop(self) -> None:
        """Make room, and say what went."""
        gone: Counter[str] = Counter()
        while len(self._records) > self._limits.records // 2:
            record = self._records.popleft()
            earlier = record.data.get("kinds", {}) if record.kind == DROPPED else {record.kind: 1}
            gone.update(earlier)
        self._last += 1
        dropped = GatewayRecord(
            id=self._last, at=datetime.now(UTC), kind=DROPPED, data={"kinds": dict(gone)}
        )
        self._records.append(dropped)
        self._rewrite()

    def _forget(self, upto: int) -> None:
        while self._records and self._records[0].id <= upto:
            self._records.popleft()

    def _replay(self, line: bytes) -> None:
        try:
            plain = json.loads(line)
            if "state" in plain:
                self._last = max(self._last, plain["state"]["last"])
                self.spent = Spent.model_validate(plain["state"]["spent"])
                self.terms = Terms.model_validate(plain["state"]["terms"])
            elif "taken" in plain:
                self._forget(plain["taken"])
            elif "began" in plain:
                self._last = max(self._last, plain["began"])
                self._open[plain["began"]] = plain["about"]
            elif "ended" in plain:
                self._open.pop(plain["ended"], None)
                for record in plain["records"]:
                    self._admit(GatewayRecord.model_validate(record))
            else:
                self._admit(GatewayRecord.model_validate(plain))
        except (ValueError, KeyError, TypeError):
            logger.warning("a line of %s cannot be read and is left out", self._path)

    def _state(self) -> bytes:
        terms = self.terms.model_dump(mode="json", exclude={"spent"}, exclude_unset=True)
        spent = self.spent.model_dump()
        return dumps({"state": {"last": self._last, "spent": spent, "terms": terms}})

    def _write(self, line: bytes) -> None:
        """Raises: OSError; then the file is as it was: a torn line would spoil the next one."""
        if self._removed:
            return
        data = line + b"\n"
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        with io.FileIO(os.open(self._path, flags, 0o600), "wb") as file:
            before = file.seek(0, os.SEEK_END)
            if file.write(data) != len(data):
                file.truncate(before)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self._path))
        self._written += len(data)
        if self._written > self._limits.rewrite_bytes:
            self._rewrite()

    def _rewrite(self) -> None:
        """Only what still counts. What was spent is in the state, and not to be counted again: the
        records come first."""
        if self._removed:
            return
        lines = [
            *(_line(record) for record in self._records),
            *(dumps({"began": n, "about": about}) for n, about in self._open.items()),
            self._state(),
        ]
        with replacing(self._path, mode=0o600) as file:
            file.write(b"\n".join(lines) + b"\n")
        self._written = 0


class Records:
    """The logs of all sessions."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory / DIRECTORY
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        sweep_records(self._directory)
        self._logs: dict[UUID, SessionLog] = {}

    def of(self, session_id: UUID) -> SessionLog:
        log = self._logs.get(session_id)
        if log is None:
            path = self._directory / f"{session_id}.ndjson"
            log = self._logs[session_id] = SessionLog.load(path)
        return log

    def add(self, session_id: UUID, kind: str, data: Mapping[str, Any]) -> int:
        """Note something of a session; its id."""
        return self.of(session_id).add(kind, data)

    def remove(self, session_id: UUID) -> None:
        """Of a session that is deleted nothing stays."""
        self.of(session_id).remove()
        del self._logs[session_id]

    def __iter__(self) -> Iterator[UUID]:
        return iter(list(self._logs))


def _line(record: GatewayRecord) -> bytes:
    return dumps(record.model_dump(mode="json"))
