"""The matrix from the browser: a process of the client's side, looked after here, its news stored.

The process is a user of the api like any other: nothing of it is imported here, and what it finds
is what any client would find.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import signal
import sys
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any
from uuid import UUID

from uuid_utils.compat import uuid7

from api.db import matrix
from api.db.matrix import CellNews
from api.db.pool import Database
from api.owner import OwnerToken
from api.settings import Settings
from api.sidecar import Sidecar
from contracts.bodies import CellState, MatrixCreate, MatrixRun, MatrixState
from contracts.errors import (
    Conflict,
    HoldfastError,
    MatrixRunNotFound,
    UnknownHarness,
    UnknownProvider,
)
from contracts.events import dumps

log = logging.getLogger(__name__)

MODULE = "client.matrix_lines"
BEAT_EVERY = 2.0
STALE_AFTER = timedelta(seconds=15)
# The session of a cell that is cut off is removed first.
END_WITHIN = 75.0
STOP_WITHIN = 3.0
LONGEST_LINE = 1 << 20
MOST_STDERR = 4096
VERDICTS: dict[str | None, CellState] = {
    None: "running",
    "PASS": "passed",
    "FAIL": "failed",
    "SKIP": "skipped",
}


class Matrix:
    def __init__(self, database: Database, sidecar: Sidecar, settings: Settings) -> None:
        self._database = database
        self._sidecar = sidecar
        self._settings = settings
        self._group: asyncio.TaskGroup | None = None
        self._tasks: dict[UUID, asyncio.Task[None]] = {}

    @contextlib.asynccontextmanager
    async def serve(self) -> AsyncIterator[None]:
        """Look after runs for the time of the block; what still runs at its end is interrupted."""
        async with asyncio.TaskGroup() as group:
            self._group = group
            try:
                yield
            finally:
                self._group = None
                for task in self._tasks.values():
                    task.cancel()

    async def start(self, asked: MatrixCreate) -> MatrixRun:
        """Raises: UnknownHarness, UnknownProvider, Conflict while another one runs."""
        able = await self._sidecar.capabilities()
        harnesses = _chosen(asked.harnesses, [h.name for h in able.harnesses], UnknownHarness)
        providers = _chosen(asked.providers, [p.name for p in able.providers], UnknownProvider)
        run_id = uuid7()
        await self._end_stale()
        async with self._database.connection() as conn, conn.transaction():
            begun = await matrix.insert(conn, run_id, harnesses, providers, asked.engine)
        if not begun or self._group is None:
            raise Conflict("The matrix is running.", hint="Wait for its end, or cancel it.")
        order = self._order(harnesses, providers, asked.engine)
        task = self._group.create_task(self._look_after(run_id, order))
        self._tasks[run_id] = task
        task.add_done_callback(lambda _: self._tasks.pop(run_id, None))
        return await self.get(run_id)

    async def get(self, run_id: UUID) -> MatrixRun:
        """Raises: MatrixRunNotFound."""
        await self._end_stale()
        async with self._database.connection() as conn:
            run = await matrix.get(conn, run_id)
        if run is None:
            raise MatrixRunNotFound(
                f"There is no run {run_id} of the matrix.", hint="GET /matrix/runs lists them."
            )
        return run

    async def page(self, limit: int) -> list[MatrixRun]:
        await self._end_stale()
        async with self._database.connection() as conn:
            return await matrix.page(conn, limit)

    async def cancel(self, run_id: UUID) -> MatrixRun:
        """End a run; one that has ended stays as it is. Whoever looks after it hears it soon.

        Raises: MatrixRunNotFound.
        """
        async with self._database.transaction() as conn:
            await matrix.finish(conn, run_id, "cancelled")
        task = self._tasks.get(run_id)
        if task is not None:
            task.cancel()
        return await self.get(run_id)

    async def _end_stale(self) -> None:
        """An api that was killed left its run behind; its process ends by itself."""
        async with self._database.transaction() as conn:
            for run_id in await matrix.stale(conn, STALE_AFTER):
                await matrix.finish(conn, run_id, "interrupted", "its api was stopped")

    def _order(self, harnesses: list[str], providers: list[str], engine: str) -> bytes:
        """What the process is told, by its stdin: a command line is there for all to read."""
        settings = self._settings
        host = "127.0.0.1" if settings.api_host in ("0.0.0.0", "::") else settings.api_host  # noqa: S104 - compared, not bound
        host = f"[{host}]" if ":" in host else host
        store = {
            "endpoint": settings.s3_endpoint,
            "access_key": settings.s3_access_key.get_secret_value(),
            "secret_key": settings.s3_secret_key.get_secret_value(),
            "bucket": settings.s3_bucket,
        }
        order: dict[str, Any] = {
            "url": f"http://{host}:{settings.api_port}",
            "token": OwnerToken.of(settings).current().decode(),
            "store": store,
            "harnesses": harnesses,
            "providers": providers,
            "engine": engine,
        }
        return dumps(order) + b"\n"

    async def _look_after(self, run_id: UUID, order: bytes) -> None:
        """Never raises: how it went is the run's state."""
        state: MatrixState = "failed"
        error: str | None = None
        try:
            error = await self._run(run_id, order)
            state = "completed" if error is None else "failed"
        except asyncio.CancelledError:
            state, error = "interrupted", "the api was stopped"
            raise
        except HoldfastError as trouble:
            error = trouble.message
        except Exception as trouble:  # the boundary: a run that fails must not end the service
            log.exception("matrix run %s failed in the api", run_id)
            error = f"unexpected: {type(trouble).__name__}"
        finally:
            try:
                async with asyncio.timeout(5.0), self._database.transaction() as conn:
                    await matrix.finish(conn, run_id, state, error)
            except (HoldfastError, TimeoutError) as trouble:
                log.warning("the end of matrix run %s was not stored: %s", run_id, trouble)

    async def _run(self, run_id: UUID, order: bytes) -> str | None:
        """What went wrong, if there is no verdict for every cell.

        Raises: DatabaseUnavailable.
        """
        process = await asyncio.create_subprocess_exec(
            # -P: the current directory is data, never a place to import from
            *(sys.executable, "-P", "-m", MODULE),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            limit=LONGEST_LINE,
            start_new_session=True,
        )
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        try:
            process.stdin.write(order)
            failed: str | HoldfastError | None
            async with asyncio.TaskGroup() as tasks:
                said = tasks.create_task(_last_words(process.stderr))
                beats = tasks.create_task(self._beat(run_id, process.stdin))
                try:
                    failed = await self._hear(run_id, process.stdout)
                except HoldfastError as error:
                    failed = error  # as itself, not as a group of one
                    process.stdin.close()
                beats.cancel()
                code = await process.wait()
            if isinstance(failed, HoldfastError):
                raise failed
            if failed is not None:
                return failed
            if code != 0:
                log.warning("matrix run %s: %s", run_id, said.result())
                return f"it ended with {code}; see the log of the api"
            return None
        finally:
            # a stack that stops does not wait for what it cannot serve any more
            await asyncio.shield(_end(process, END_WITHIN if self._group else STOP_WITHIN))

    async def _hear(self, run_id: UUID, stream: asyncio.StreamReader) -> str | None:
        while line := await stream.readline():
            news = json.loads(line)
            if "failed" in news:
                return str(news["failed"])
            async with self._database.connection() as conn:
                await matrix.update_cell(conn, run_id, _news(news))
        return None

    async def _beat(self, run_id: UUID, stdin: asyncio.StreamWriter) -> None:
        """Until the run shall end, by whichever process that was said; then the process is told."""
        while True:
            await asyncio.sleep(BEAT_EVERY)
            with contextlib.suppress(HoldfastError):
                async with self._database.connection() as conn:
                    if not await matrix.beat(conn, run_id):
                        stdin.close()
                        return


def _chosen(
    asked: list[str] | None, known: list[str], unknown: type[UnknownHarness | UnknownProvider]
) -> list[str]:
    for name in asked or []:
        if name not in known:
            raise unknown(f"There is no {name[:100]!r}.", hint=f"Use some of: {', '.join(known)}.")
    return list(dict.fromkeys(asked)) if asked is not None else known


def _news(plain: dict[str, Any]) -> CellNews:
    session_id = plain["session_id"]
    return CellNews(
        harness=plain["harness"],
        provider=plain["provider"],
        state=VERDICTS[plain["verdict"]],
        step=plain["step"],
        steps=plain["steps"],
        reason=plain["reason"],
        engine=plain["engine"],
        session_id=None if session_id is None else UUID(session_id),
    )


async def _last_words(stream: asyncio.StreamReader) -> str:
    """The end of what it complained of; read to the end, as a full pipe would stop it."""
    held = b""
    while piece := await stream.read(MOST_STDERR):
        held = (held + piece)[-MOST_STDERR:]
    return held.decode("utf-8", "replace")


async def _end(process: asyncio.subprocess.Process, within: float) -> None:
    """It ends when its stdin does, and clears up; what does not is killed, with all it started."""
    assert process.stdin is not None
    if process.returncode is not None:
        return
    process.stdin.close()
    try:
        async with asyncio.timeout(within):
            await process.wait()
    except TimeoutError:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
