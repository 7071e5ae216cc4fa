"""LISTEN/NOTIFY: one connection per process wakes whoever follows a session."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING
from uuid import UUID

from api.db.pool import mapped
from contracts.errors import DatabaseUnavailable

if TYPE_CHECKING:
    import asyncpg

    from api.db.pool import Connection, Database, Record

log = logging.getLogger(__name__)

CHANNEL = "holdfast_events"
# A connection that died without a word is noticed after this long.
CHECK_EVERY = 15.0
BACKOFF = (0.1, 0.2, 0.5, 1.0, 2.0)

NOTIFY = "SELECT pg_notify('holdfast_events', $1)"


async def notify(conn: Connection, subject: UUID) -> None:
    """Wake whoever waits for a session, or for a turn, when this transaction commits."""
    await conn.execute(NOTIFY, str(subject))


# What every process waits for: there may be a turn that somebody has to start or to carry.
WORK = UUID(int=0)
NOTIFY_QUEUE = """
SELECT pg_notify('holdfast_events', $2)
WHERE EXISTS (SELECT FROM turns WHERE session_id = $1 AND state = 'queued')
"""


async def notify_queue(conn: Connection, session_id: UUID) -> None:
    """Wake every process when a turn of this session waits to be started."""
    await conn.execute(NOTIFY_QUEUE, session_id, str(WORK))


class Listener:
    """Fans notifications out. A wake-up means "look again", never "there is something"."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._waiting: dict[UUID, set[asyncio.Event]] = {}
        self.closing = False

    @contextlib.contextmanager
    def subscribe(self, subject: UUID) -> Iterator[asyncio.Event]:
        """An event that is set whenever the session, or turn, may have changed."""
        event = asyncio.Event()
        waiting = self._waiting.setdefault(subject, set())
        waiting.add(event)
        try:
            yield event
        finally:
            waiting.discard(event)
            if not waiting and self._waiting.get(subject) is waiting:
                del self._waiting[subject]

    def has_subscribers(self, subject: UUID) -> bool:
        """Whether anybody waits for the session, or turn, now."""
        return subject in self._waiting

    @contextlib.asynccontextmanager
    async def serve(self) -> AsyncIterator[None]:
        """Listen for the time of the block."""
        async with asyncio.TaskGroup() as group:
            task = group.create_task(self._run())
            try:
                yield
            finally:
                self.close()
                task.cancel()

    def close(self) -> None:
        """Tell every follower that the service ends."""
        self.closing = True
        self._wake_all()

    async def _run(self) -> None:
        """Listen until cancelled, connecting again for as long as the service lives."""
        failures = 0
        while True:
            try:
                conn = await self._database.dedicated()
                try:
                    failures = 0
                    await self._listen(conn)
                finally:
                    conn.terminate()
            except DatabaseUnavailable as error:
                log.warning("not listening: %s", error.message)
            except Exception:  # the boundary: deaf for a moment, never down
                log.exception("not listening")
            await asyncio.sleep(BACKOFF[min(failures, len(BACKOFF) - 1)])
            failures += 1

    async def _listen(self, conn: asyncpg.Connection[Record]) -> None:
        lost = asyncio.Event()
        conn.add_termination_listener(lambda _: lost.set())
        with mapped():
            await conn.add_listener(CHANNEL, self._received)
            # what was said before we listened, or between two connections, was not heard
            self._wake_all()
            while not lost.is_set():
                try:
                    async with asyncio.timeout(CHECK_EVERY):
                        await lost.wait()
                except TimeoutError:
                    await conn.execute("SELECT 1", timeout=5.0)

    def _received(self, _conn: object, _pid: int, _channel: str, payload: object) -> None:
        try:
            subject = UUID(str(payload))
        except ValueError:
            log.warning("a notification without an id was ignored")
            return
        for event in self._waiting.get(subject, ()):
            event.set()

    def _wake_all(self) -> None:
        for waiting in self._waiting.values():
            for event in waiting:
                event.set()
