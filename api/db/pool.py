"""Connections to PostgreSQL, and what its errors mean to the rest of the api."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING, TypeAlias

import asyncpg
from asyncpg.pool import PoolConnectionProxy

from api.metrics import Metrics
from contracts.errors import DatabaseUnavailable

if TYPE_CHECKING:
    Record: TypeAlias = asyncpg.Record
    Connection: TypeAlias = asyncpg.Connection[Record] | PoolConnectionProxy[Record]
    Pool: TypeAlias = asyncpg.Pool[Record]

# A statement of ours takes milliseconds; one that takes this long hangs.
COMMAND_TIMEOUT = 30.0
ACQUIRE_TIMEOUT = 10.0
POOL_SIZE = 10
# A process that is stopped (SIGSTOP, a frozen host) in the middle of a transaction holds the
# session's row; after this long PostgreSQL hangs up, so that another process can take over.
IDLE_SECONDS = 10.0

# What says "the database cannot serve you now", as against "this statement is wrong".
UNAVAILABLE: tuple[type[BaseException], ...] = (
    OSError,  # also TimeoutError
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
    asyncpg.FatalPostgresError,  # the server hung up without a code
    asyncpg.PostgresConnectionError,  # 08
    asyncpg.InvalidAuthorizationSpecificationError,  # 28
    asyncpg.InvalidCatalogNameError,  # 3D: the database is not there
    asyncpg.TransactionRollbackError,  # 40: deadlock, serialisation
    asyncpg.InsufficientResourcesError,  # 53
    asyncpg.OperatorInterventionError,  # 57: shutdown, still starting, cancelled
    asyncpg.PostgresSystemError,  # 58
    asyncpg.IdleInTransactionSessionTimeoutError,  # 25P03: this process was stopped for a while
)


# While connecting no statement of ours is involved: whatever the server says, it says no.
REFUSED: tuple[type[BaseException], ...] = (*UNAVAILABLE, asyncpg.PostgresError)


@contextlib.contextmanager
def mapped(errors: tuple[type[BaseException], ...] = UNAVAILABLE) -> Iterator[None]:
    """Turn the driver's "not now" into ours.

    Raises: DatabaseUnavailable.
    """
    try:
        yield
    except errors as error:
        # asyncpg reports a wrong argument as InterfaceError + ValueError: a bug, not an outage
        if isinstance(error, ValueError):
            raise
        raise DatabaseUnavailable(
            f"The database does not answer ({type(error).__name__}).",
            hint="Try again; if it goes on, see the log of PostgreSQL.",
        ) from error


async def _prepare(conn: Connection) -> None:
    """JSON travels as the bytes that are stored: no decoding of what is only passed on."""
    await conn.set_type_codec(
        "json", schema="pg_catalog", encoder=bytes, decoder=bytes, format="binary"
    )


async def _keep(_conn: Connection) -> None:
    """Nothing here changes a connection's state, so the driver's RESET ALL is a wasted trip."""


# Of the connection, not of a transaction: what is done meanwhile may take minutes.
TRY_LOCK = "SELECT pg_try_advisory_lock($1)"
UNLOCK = "SELECT pg_advisory_unlock($1)"


class Database:
    """The pool, and the only way to a connection."""

    def __init__(self, pool: Pool, url: str, metrics: Metrics) -> None:
        self._pool = pool
        self._url = url
        self.metrics = metrics

    @contextlib.asynccontextmanager
    async def connection(self) -> AsyncIterator[Connection]:
        """A connection without a transaction.

        Raises: DatabaseUnavailable.
        """
        with mapped():
            async with contextlib.AsyncExitStack() as stack:
                with mapped(REFUSED):
                    acquired = self._pool.acquire(timeout=ACQUIRE_TIMEOUT)
                    conn = await stack.enter_async_context(acquired)
                yield conn

    @contextlib.asynccontextmanager
    async def transaction(self) -> AsyncIterator[Connection]:
        """A connection inside a transaction that commits at the end of the block.

        Raises: DatabaseUnavailable.
        """
        async with self.connection() as conn, conn.transaction():
            yield conn

    @contextlib.asynccontextmanager
    async def alone(self, key: int) -> AsyncIterator[bool]:
        """Whether no other process is in a block with this key; it holds no transaction open.

        Raises: DatabaseUnavailable.
        """
        async with self.connection() as conn:
            got = bool(await conn.fetchval(TRY_LOCK, key))
            try:
                yield got
            finally:
                if got:
                    await conn.execute(UNLOCK, key)

    async def check(self) -> None:
        """Raises: DatabaseUnavailable."""
        async with self.connection() as conn:
            await conn.execute("SELECT 1")

    async def dedicated(self) -> asyncpg.Connection[Record]:
        """A connection outside the pool, for LISTEN; the caller closes it.

        Raises: DatabaseUnavailable.
        """
        with mapped(REFUSED):
            return await asyncpg.connect(
                self._url, timeout=ACQUIRE_TIMEOUT, command_timeout=COMMAND_TIMEOUT
            )


async def _connect(url: str, within: float, idle_seconds: float) -> Pool:
    deadline = asyncio.get_running_loop().time() + within
    while True:
        try:
            with mapped(REFUSED):
                return await asyncpg.create_pool(
                    url,
                    min_size=1,
                    max_size=POOL_SIZE,
                    timeout=ACQUIRE_TIMEOUT,
                    command_timeout=COMMAND_TIMEOUT,
                    server_settings={
                        "idle_in_transaction_session_timeout": str(round(idle_seconds * 1000))
                    },
                    init=_prepare,
                    reset=_keep,
                )
        except DatabaseUnavailable:
            if asyncio.get_running_loop().time() > deadline:
                raise
            await asyncio.sleep(0.2)


@contextlib.asynccontextmanager
async def open_database(
    url: str,
    *,
    within: float = 30.0,
    idle_seconds: float = IDLE_SECONDS,
    metrics: Metrics | None = None,
) -> AsyncIterator[Database]:
    """The database for the time of the block; waits for a server that is still starting. What is
    stored is counted in `metrics`. A transaction that does nothing for `idle_seconds` is ended.

    Raises: DatabaseUnavailable.
    """
    pool = await _connect(url, within, idle_seconds)
    try:
        yield Database(pool, url, metrics or Metrics())
    finally:
        try:
            async with asyncio.timeout(5.0):
                await pool.close()
        except TimeoutError:
            pool.terminate()
