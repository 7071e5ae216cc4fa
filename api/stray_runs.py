"""Runs of the sidecar whose turn has ended here: nobody hears them, and they cost tokens."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator

from api.db import turns
from api.db.pool import Database
from api.sidecar import Sidecar
from contracts.errors import HoldfastError

log = logging.getLogger(__name__)


class StrayRuns:
    """A turn is given up on while the sidecar is away. When it is back, it goes on with the run."""

    def __init__(self, database: Database, sidecar: Sidecar, every: float) -> None:
        self._database = database
        self._sidecar = sidecar
        self._every = every

    @contextlib.asynccontextmanager
    async def serve(self) -> AsyncIterator[None]:
        """Look every so often for the time of the block."""
        async with asyncio.TaskGroup() as group:
            task = group.create_task(self._run())
            try:
                yield
            finally:
                task.cancel()

    async def cancel_all(self) -> int:
        """Cancel every run whose turn does not run; how many there were.

        Raises: SidecarUnavailable, DatabaseUnavailable.
        """
        # In this order: a turn runs before its run exists, so that no new one is taken for a stray.
        found = [run.turn_id for run in (await self._sidecar.running()).runs]
        if not found:
            return 0
        async with self._database.connection() as conn:
            expected = await turns.running_among(conn, found)
        strays = [turn_id for turn_id in found if turn_id not in expected]
        for turn_id in strays:
            log.warning("run %s goes on although its turn has ended: cancelling it", turn_id)
            await self._sidecar.cancel(turn_id)
        return len(strays)

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self._every)
            try:
                await self.cancel_all()
            except HoldfastError as error:
                log.info("could not look for stray runs: %s", error.message)
            except Exception:  # the boundary: a failed pass must not end the service
                log.exception("could not look for stray runs")
