"""Keeps sessions from starting turns while they are copied, for as long as this program lives."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING
from uuid import UUID, uuid4

from api.backup.errors import BackupRunning
from api.db import dump, holds, notify, sessions
from api.db.dump import Standing
from api.db.pool import UNAVAILABLE, mapped
from contracts.errors import DatabaseUnavailable, HoldfastError

if TYPE_CHECKING:
    from api.db.pool import Connection

EXPECTED: tuple[type[BaseException], ...] = (HoldfastError, *UNAVAILABLE)
RENEW_EVERY = holds.LASTS.total_seconds() / 4


class Holder:
    """The holds of one backup. Its connection serves one call at a time."""

    def __init__(self, conn: Connection) -> None:
        self._conn = conn
        self._owner = uuid4()
        self._one = asyncio.Lock()

    @classmethod
    @contextlib.asynccontextmanager
    async def open(cls, url: str) -> AsyncIterator[Holder]:
        """Nothing is held any more after the block.

        Raises: DatabaseUnavailable.
        """
        trouble: BaseException | None = None
        async with dump.connect(url) as conn:
            holder = cls(conn)
            async with asyncio.TaskGroup() as group:
                beat = group.create_task(holder._renew())
                try:
                    yield holder
                except EXPECTED as error:
                    trouble = error  # as itself, not as a group of one
                finally:
                    beat.cancel()
                    # what cannot be released runs out by itself
                    with contextlib.suppress(DatabaseUnavailable), mapped():
                        await holder.release()
        if trouble is not None:
            raise trouble

    async def hold(self, session_id: UUID) -> Standing | None:
        """Let no other turn start; how the session stands. None when there is no such session, or
        it is being deleted.

        Raises: BackupError, when another backup copies it.
        """
        async with self._one, self._conn.transaction():
            locked = await sessions.lock(self._conn, session_id)
            if locked is None or locked.deleting:
                return None
            if not await holds.take(self._conn, session_id, self._owner):
                raise BackupRunning(
                    f"Another backup copies session {session_id}.",
                    hint="Wait for its end; if it was killed, a minute is enough.",
                )
            return Standing(locked.epoch, locked.deleting, locked.running_turn)

    async def release(self, session_id: UUID | None = None) -> None:
        """Let turns start again: in this session, or in all."""
        async with self._one, self._conn.transaction():
            await holds.release(self._conn, self._owner, session_id)
            await notify.notify(self._conn, notify.WORK)

    async def _renew(self) -> None:
        """A hold that ran out all the same costs another try, never the backup's truth."""
        while True:
            await asyncio.sleep(RENEW_EVERY)
            with contextlib.suppress(DatabaseUnavailable), mapped():
                async with self._one:
                    await holds.renew(self._conn, self._owner)
