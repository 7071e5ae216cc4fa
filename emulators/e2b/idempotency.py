"""`Idempotency-Key`: one request, carried out once, answered as often as it is asked.

As E2B's API does it: the answer is kept whatever it was, a refusal too; while the first request is
under way, another one is told to come back; the same key with another request is refused.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

KEPT_SECONDS = 24 * 3600
ALLOWED = re.compile(r"[a-z0-9]{1,255}")


@dataclass(frozen=True)
class Answer:
    status: int
    body: bytes


class BadKey(Exception):
    """Not a key."""


class InProgress(Exception):
    """The first request has not been answered yet."""


class Mismatch(Exception):
    """The key belongs to another request."""


@dataclass
class _Record:
    fingerprint: bytes
    answer: Answer | None = None
    since: float = field(default_factory=time.monotonic)


class Idempotency:
    """The keys of one team."""

    def __init__(self) -> None:
        self._records: dict[str, _Record] = {}
        self._working: set[asyncio.Task[Answer]] = set()

    async def once(self, key: str, asked: bytes, work: Callable[[], Awaitable[Answer]]) -> Answer:
        """The answer to `asked`. `work` is carried to its end, whether or not the caller waits.

        Raises: BadKey, InProgress, Mismatch.
        """
        if ALLOWED.fullmatch(key) is None:
            raise BadKey(
                "Idempotency-Key must contain one value of 1 to 255 lowercase ASCII letters or "
                "digits"
            )
        fingerprint = hashlib.sha256(asked).digest()
        record = self._records.get(key)
        if record is not None and time.monotonic() - record.since > KEPT_SECONDS:
            record = None
        if record is None:
            record = self._records[key] = _Record(fingerprint)
            task = asyncio.create_task(self._carry_out(record, work))
            self._working.add(task)
            task.add_done_callback(self._working.discard)
            return await asyncio.shield(task)
        if record.fingerprint != fingerprint:
            raise Mismatch("Idempotency-Key was already used with a different request")
        if record.answer is None:
            raise InProgress(
                "The original request has not recorded a response yet. Retry with the same "
                "Idempotency-Key."
            )
        return record.answer

    async def close(self) -> None:
        """Wait for what is under way."""
        if self._working:
            await asyncio.wait(self._working)

    async def _carry_out(self, record: _Record, work: Callable[[], Awaitable[Answer]]) -> Answer:
        record.answer = await work()
        return record.answer
