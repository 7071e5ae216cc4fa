"""A backup into an empty stack, or only read to see that it is whole."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from typing import IO, TYPE_CHECKING

from api.backup.archive import FILES, STATE, Member, Written
from api.backup.errors import BadBackup, DatabaseInUse, NotEmpty, StoreMismatch
from api.backup.objects import Objects
from api.backup.reading import CHANGED, Content, Head, Reading
from api.db import dump
from api.db.migrate import migrate
from api.store import open_client
from contracts.errors import HoldfastError

if TYPE_CHECKING:
    from api.db.pool import Connection
    from api.settings import StorageSettings

Say = Callable[[str], None]
SAY_EVERY = 2.0
UNDO_SECONDS = 600.0
# In the bucket of states while a restore is not done: objects beside it are that restore's.
UNFINISHED = "restore-unfinished"
EMPTY = "A backup goes into an empty stack only; nothing was changed. See docs/operations.md."


async def check(file: IO[bytes], *, say: Say) -> Content:
    """Read a backup to its end.

    Raises: BadBackup.
    """
    return await Reading(_Nowhere(), _seldom(say)).run(file)


async def restore(settings: StorageSettings, file: IO[bytes], *, say: Say) -> Content:
    """Bring a backup back: objects as they come, rows in one transaction that commits when all of
    it was held against the manifest, objects as the store gives them back. A restore that fails
    leaves nothing; what one that was killed has left, the next one takes away.

    Raises: BackupError, DatabaseUnavailable, StoreUnavailable, MigrationError.
    """
    url = settings.database_url.get_secret_value()
    async with dump.connect(url) as conn, open_client(settings) as client:
        buckets = {
            FILES: Objects(client, settings.s3_bucket),
            STATE: Objects(client, settings.s3_state_bucket),
        }
        async with conn.transaction():
            await _must_be_free(conn)
            await _clear_unfinished(buckets, say)
            await _must_be_empty(buckets)
            async with _undone_on_failure(buckets):
                await buckets[STATE].put(UNFINISHED, 0, _no_bytes(), {})
                target = _Stack(conn, buckets)
                async with dump.any_order(conn):
                    content = await Reading(target, _seldom(say)).run(file)
                await migrate(conn)
                if found := await dump.dangling(conn):
                    raise BadBackup(f"Rows refer to others that are not there: {found}.")
                await dump.settle(conn)
        await buckets[STATE].remove([UNFINISHED])
        return content


async def _must_be_free(conn: Connection) -> None:
    """Raises: NotEmpty."""
    if others := await dump.other_clients(conn):
        raise DatabaseInUse(
            f"{others} other connections to the database are open.",
            hint="Stop the api first: it would write while the backup comes back.",
        )
    if tables := await dump.tables_with_rows(conn):
        raise NotEmpty(f"There are rows in {', '.join(tables)}.", hint=EMPTY)


async def _clear_unfinished(buckets: dict[str, Objects], say: Say) -> None:
    """Only where no table has a row: a restore that was killed before its rows were committed."""
    for objects in buckets.values():
        await objects.check()
    if await buckets[STATE].sha256(UNFINISHED) is None:
        return
    say("removing what a restore that did not come to its end has left")
    await buckets[FILES].clear()
    await buckets[STATE].clear(last=UNFINISHED)


async def _must_be_empty(buckets: dict[str, Objects]) -> None:
    """Raises: NotEmpty."""
    for name, objects in buckets.items():
        if key := await objects.any_key():
            raise NotEmpty(f"There are objects in the bucket of {name}: {key}.", hint=EMPTY)


@contextlib.asynccontextmanager
async def _undone_on_failure(buckets: dict[str, Objects]) -> AsyncIterator[None]:
    """The buckets were empty: what is in them after a failure is of this restore."""
    try:
        yield
    except BaseException:
        with contextlib.suppress(HoldfastError, TimeoutError):
            async with asyncio.timeout(UNDO_SECONDS):
                await asyncio.shield(buckets[FILES].clear())
                await asyncio.shield(buckets[STATE].clear(last=UNFINISHED))
        raise


async def _no_bytes() -> AsyncIterator[bytes]:
    return
    yield


class _Stack:
    """A stack that was empty when it began."""

    def __init__(self, conn: Connection, buckets: dict[str, Objects]) -> None:
        self._conn = conn
        self._buckets = buckets

    async def begin(self, head: Head) -> None:
        # tables without rows, perhaps of another version
        await dump.clear(self._conn)
        await migrate(self._conn, upto=head.schema)

    async def object(self, bucket: str, key: str, member: Member) -> None:
        await self._buckets[bucket].put(key, member.size, member.chunks(), member.metadata)

    async def rows(self, table: str, columns: list[str], text: bytes) -> int:
        return await dump.copy_in(self._conn, table, columns, text)

    async def session(self, objects: dict[str, dict[str, Written]], beside: list[str]) -> None:
        """Raises: BadBackup, when the store does not give back what it was given."""
        for name in beside:
            bucket, _, key = name.partition("/")
            await self._buckets[bucket].remove([key])
        for bucket, listed in objects.items():
            for key, each in listed.items():
                if await self._buckets[bucket].sha256(key) != each.sha256:
                    raise StoreMismatch(
                        f"The store does not give {key} back as it was given it.",
                        hint="See the log of SeaweedFS.",
                    )


class _Nowhere:
    """Only looks."""

    async def begin(self, head: Head) -> None:
        """There is nothing to prepare."""

    async def object(self, bucket: str, key: str, member: Member) -> None:
        async for _ in member.chunks():
            pass

    async def rows(self, table: str, columns: list[str], text: bytes) -> int:
        if text and not text.endswith(b"\n"):
            raise BadBackup(f"A part of {table} does not end with a row.", hint=CHANGED)
        return text.count(b"\n")

    async def session(self, objects: dict[str, dict[str, Written]], beside: list[str]) -> None:
        """There is nothing to compare with."""


def _seldom(say: Say) -> Say:
    said = 0.0

    def now_and_then(text: str) -> None:
        nonlocal said
        if time.monotonic() - said > SAY_EVERY:
            said = time.monotonic()
            say(text)

    return now_and_then
