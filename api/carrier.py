"""Carries turns: those that are started here, and those that nobody else carries."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from datetime import timedelta
from uuid import UUID, uuid4

from api.db import leases, notify, turns
from api.db.leases import Holder
from api.db.notify import Listener
from api.db.pool import Database
from api.db.turns import RunningTurn
from api.grants import begin_next, seize, take_over
from api.pump import Limits, Pump
from api.record import Carried, error_info, record_end
from api.sidecar import Sidecar
from contracts.errors import HoldfastError, StaleEpoch
from contracts.events import TurnInterrupted
from contracts.logs import working_on

log = logging.getLogger(__name__)

# How soon a lease that ran out is noticed; all else that gives work is told by NOTIFY.
LOOK_EVERY = 1.0
GIVE_UP_WITHIN = 5.0


class Carrier:
    """A pump for each turn whose lease this process holds."""

    def __init__(
        self, database: Database, sidecar: Sidecar, listener: Listener, limits: Limits
    ) -> None:
        self._database = database
        self._sidecar = sidecar
        self._listener = listener
        self._limits = limits
        self.holder = Holder(uuid4(), timedelta(seconds=limits.lease_seconds))
        self._pumps: dict[UUID, Pump] = {}
        self._tasks: dict[UUID, asyncio.Task[None]] = {}
        self._group: asyncio.TaskGroup | None = None

    @contextlib.asynccontextmanager
    async def serve(self) -> AsyncIterator[None]:
        """Carry turns for the time of the block; what still runs at its end is given up."""
        try:
            async with asyncio.TaskGroup() as group:
                self._group = group
                own = [group.create_task(self._sweep()), group.create_task(self._heartbeat())]
                try:
                    yield
                finally:
                    self._group = None
                    for task in [*own, *self._tasks.values()]:
                        task.cancel()
        finally:
            await self._give_up()

    def carry(self, turn: RunningTurn) -> None:
        """Take a turn to its end in the background. Its lease is this process's."""
        if self._group is None:
            return
        before = self._tasks.get(turn.id)
        if before is not None:
            before.cancel()  # it has an older epoch, and could store nothing any more
        pump = Pump(turn, self._database, self._sidecar, self._listener, self._limits)
        task = self._group.create_task(self._pump(turn, pump))
        self._pumps[turn.id], self._tasks[turn.id] = pump, task
        task.add_done_callback(lambda done: self._forget(turn.id, done))

    def cancel(self, turn_id: UUID) -> None:
        """Pass on the wish to end a turn, when it is carried here."""
        pump = self._pumps.get(turn_id)
        if pump is not None:
            pump.cancel()

    async def abandon(self, session_id: UUID, turn_id: UUID, error: HoldfastError) -> None:
        """End a turn whose run does not end, whoever carries it.

        Raises: DatabaseUnavailable.
        """
        turn = await seize(self._database, session_id, turn_id, self.holder)
        if turn is None:
            return
        event = TurnInterrupted(error=error_info(error))
        await record_end(self._database, Carried(turn.id, turn.lease_epoch), event)

    def _forget(self, turn_id: UUID, done: asyncio.Task[None]) -> None:
        if self._tasks.get(turn_id) is done:
            del self._tasks[turn_id], self._pumps[turn_id]

    async def _sweep(self) -> None:
        """Look for turns to carry: at the start, when told, and every so often."""
        with self._listener.subscribe(notify.WORK) as work:
            while True:
                work.clear()
                try:
                    await self._look()
                except HoldfastError as error:
                    log.warning("could not look for turns: %s", error.message)
                except Exception:  # the boundary: a sweep that fails must not end the service
                    log.exception("could not look for turns")
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(LOOK_EVERY):
                        await work.wait()

    async def _look(self) -> None:
        async with self._database.connection() as conn:
            free = await leases.free(conn, self.holder, self._tasks.keys())
            waiting = await turns.startable(conn)
        for turn_id, session_id in free:
            turn = await take_over(self._database, session_id, turn_id, self.holder)
            if turn is not None:
                log.info("turn %s is taken up with epoch %d", turn.id, turn.lease_epoch)
                self.carry(turn)
        for session_id in waiting:
            turn = await begin_next(self._database, session_id, self.holder)
            if turn is not None:
                self.carry(turn)

    async def _heartbeat(self) -> None:
        """Keep the leases of what is carried. A turn whose pump gave up is left to run out."""
        while True:
            await asyncio.sleep(self._limits.lease_seconds / 3)
            if not self._tasks:
                continue
            try:
                async with self._database.connection() as conn:
                    held = await leases.extend(conn, self.holder, self._tasks.keys())
            except HoldfastError as error:
                log.warning("no heartbeat: %s", error.message)
            except Exception:  # the boundary: a heartbeat that fails must not end the service
                log.exception("no heartbeat")
            else:
                for lease in held:
                    if lease.cancel_requested:
                        self.cancel(lease.turn_id)

    async def _give_up(self) -> None:
        """So that a restarted api, or another one, goes on at once."""
        try:
            async with asyncio.timeout(GIVE_UP_WITHIN), self._database.transaction() as conn:
                await leases.give_up(conn, self.holder)
                await notify.notify(conn, notify.WORK)
        except (HoldfastError, TimeoutError) as error:
            log.warning("the leases were not given up and will run out: %s", error)

    async def _pump(self, turn: RunningTurn, pump: Pump) -> None:
        with working_on(session_id=turn.session_id, turn_id=turn.id):
            await self._pump_to_its_end(turn, pump)

    async def _pump_to_its_end(self, turn: RunningTurn, pump: Pump) -> None:
        try:
            await pump.run()
        except StaleEpoch as error:
            log.info("turn %s is another process's by now: %s", turn.id, error.message)
        except HoldfastError as error:
            # the end could not be stored; when the lease has run out the sweep takes it up again
            log.warning("turn %s is left for later: %s", turn.id, error.message)
        except Exception:  # the boundary: a turn that fails must not end the service
            log.exception("turn %s failed in the api", turn.id)
            await self._end_after_bug(turn)

    async def _end_after_bug(self, turn: RunningTurn) -> None:
        failure = HoldfastError(
            "The api failed while it carried the turn.", hint="See the log of the api."
        )
        event = TurnInterrupted(error=error_info(failure))
        try:
            await record_end(self._database, Carried(turn.id, turn.lease_epoch), event)
            await self._sidecar.cancel(turn.id)
        except HoldfastError as error:
            log.warning("turn %s: after its failure: %s", turn.id, error.message)
