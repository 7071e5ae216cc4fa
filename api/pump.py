"""A turn on its way: handed to the sidecar, its stream brought into the transcript."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass

from api.db import turns
from api.db.notify import Listener
from api.db.pool import Database
from api.db.turns import RunningTurn
from api.lines import Holding, LineBuffer, Numbered, Numbering
from api.past import past_of
from api.patience import Patience
from api.permissions import Delivery
from api.record import Carried, error_info, record, record_accepted, record_end
from api.sidecar import Sidecar
from contracts.bodies import RunRequest
from contracts.errors import (
    DatabaseUnavailable,
    HarnessExited,
    HoldfastError,
    RunNotFound,
    StaleEpoch,
    StreamGap,
    Unavailable,
)
from contracts.events import TurnCancelled, TurnFailed, TurnInterrupted

log = logging.getLogger(__name__)

# A connection that lasted this long was a good one, even if no line came through it.
STEADY = 5.0


@dataclass(frozen=True)
class Limits:
    """How long a turn waits for a sidecar that is away, in seconds, and how often for a gap.

    A lease lasts long enough for a stall of its process, and not so long that a turn whose api
    was killed stands still. The ledger is held against the providers at `reconcile_every`. What a
    harness asks is rejected when nobody answers for `permission_seconds`. An answer waits for its
    record in the audit for `record_within`. `max_queued` turns may wait in a session. What the
    providers say is good for the metrics for `boxes_seconds`.
    """

    start_within: float = 60.0
    follow_within: float = 300.0
    gap_tries: int = 5
    lease_seconds: float = 10.0
    reconcile_every: float = 10.0
    permission_seconds: float = 3600.0
    record_within: float = 2.0
    max_queued: int = 100
    boxes_seconds: float = 10.0


@dataclass(frozen=True)
class Connection:
    """What one connection to a run's stream has brought."""

    ended: bool
    gap: StreamGap | None
    last_n: int
    # the receipt and what followed it, when the end did not come
    held: list[Numbered]


class Pump:
    """Carries one turn to its end. Everything that it has to know is in the database."""

    def __init__(
        self,
        turn: RunningTurn,
        database: Database,
        sidecar: Sidecar,
        listener: Listener,
        limits: Limits,
    ) -> None:
        self._turn = turn
        self._carried = Carried(turn.id, turn.lease_epoch)
        self._database = database
        self._sidecar = sidecar
        self._listener = listener
        self._limits = limits
        self._answers = Delivery(turn, database, sidecar, listener, limits.permission_seconds)
        self._cancelled = asyncio.Event()
        if turn.cancel_requested:
            self._cancelled.set()

    def cancel(self) -> None:
        """Pass the wish on; the end comes through the stream."""
        self._cancelled.set()

    async def run(self) -> None:
        """Returns when the turn has ended.

        Raises: DatabaseUnavailable when the end could not be stored, StaleEpoch when another
        process carries the turn.
        """
        trouble: HoldfastError | None = None
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(self._hear_cancel())]
            try:
                if self._turn.accepted or await self._start():
                    tasks.append(group.create_task(self._deliver_cancel()))
                    tasks.append(group.create_task(self._answers.serve()))
                    await self._follow()
            except HoldfastError as error:
                trouble = error  # as itself, not as a group of one
            for task in tasks:
                task.cancel()
        if trouble is not None:
            raise trouble

    async def _hear_cancel(self) -> None:
        """The wish may come to any process; what is not heard here, the heartbeat tells."""
        with self._listener.subscribe(self._turn.id) as changed:
            while not self._cancelled.is_set():
                await changed.wait()
                changed.clear()
                with contextlib.suppress(DatabaseUnavailable):
                    async with self._database.connection() as conn:
                        if await turns.cancel_requested(conn, self._turn.id):
                            self._cancelled.set()

    async def _start(self) -> bool:
        """Hand the turn over; false when it ended without ever being taken."""
        patience = Patience(self._limits.start_within)
        request: RunRequest | None = None
        while True:
            try:
                if self._cancelled.is_set():
                    await self._sidecar.cancel(self._turn.id)
                else:
                    request = request or await self._request()
                    await self._sidecar.start(request)
                if not await record_accepted(self._database, self._carried):
                    # it ended elsewhere while this process was held up: nobody waits for the run
                    await self._stop_run()
                    return False
            except StaleEpoch:
                raise
            except RunNotFound:  # the answer to a cancel: it was never taken
                await self._end(TurnCancelled(reason="cancelled before it started"))
                return False
            except Unavailable as error:
                trouble = error
            except HoldfastError as error:
                await self._end(TurnFailed(error=error_info(error)))
                return False
            else:
                return True
            wake = None if self._cancelled.is_set() else self._cancelled
            if not await patience.pause(wake):
                await self._end(TurnFailed(error=error_info(trouble)))
                return False

    async def _request(self) -> RunRequest:
        """Raises: DatabaseUnavailable."""
        turn = self._turn
        past, turns_before = await past_of(self._database, turn)
        fields = RunRequest.model_fields.keys() - {"turn_id", "past", "turns_before"}
        same = {name: getattr(turn, name) for name in fields}
        return RunRequest(turn_id=turn.id, **same, past=past, turns_before=turns_before)

    async def _deliver_cancel(self) -> None:
        await self._cancelled.wait()
        patience = Patience(self._limits.follow_within)
        while True:
            try:
                await self._sidecar.cancel(self._turn.id)
            except Unavailable:
                if await patience.pause():
                    continue
            except RunNotFound:
                pass  # whoever follows the stream hears it too, and ends the turn
            except HoldfastError as error:
                log.warning("turn %s was not cancelled: %s", self._turn.id, error.message)
            return

    async def _follow(self) -> None:
        """Read the stream to its end, across broken connections.

        Raises: DatabaseUnavailable when it stays away for too long, StaleEpoch.
        """
        patience = Patience(self._limits.follow_within)
        lines_in_all: int | None = None
        gaps, again = 0, False
        while True:
            trouble: HoldfastError | None = None
            try:
                if again and self._cancelled.is_set():
                    # a sidecar that was started again may not have heard of it
                    await self._sidecar.cancel(self._turn.id)
                again = True
                after = await self._stored()
                if after is None:
                    return
                brought = await self._read(after, patience)
                if brought.ended:
                    return
                if lines_in_all is not None and brought.last_n >= lines_in_all:
                    silent = HarnessExited("The run ended without saying how.", hint="Start anew.")
                    await self._interrupt(silent, brought.held)
                    return
                gaps = gaps + 1 if brought.gap is not None else 0
                run = await self._sidecar.run(self._turn.id)
                if run.state == "running":
                    patience.alive()
                else:
                    lines_in_all = run.last_n
                if brought.gap is not None and gaps >= self._limits.gap_tries:
                    await self._interrupt(brought.gap)
                    return
            except StaleEpoch:
                raise
            except RunNotFound as error:
                await self._interrupt(error)
                return
            except HoldfastError as error:
                trouble = error
            if await patience.pause():
                continue
            trouble = trouble or HarnessExited("The run says no more.", hint="Start another.")
            if isinstance(trouble, DatabaseUnavailable):
                raise trouble
            await self._interrupt(trouble)
            return

    async def _stored(self) -> int | None:
        """The number of the last stored line; None when the turn has ended."""
        async with self._database.connection() as conn:
            turn = await turns.running_one(conn, self._turn.id)
        return turn.last_source if turn is not None else None

    async def _read(self, after: int, patience: Patience) -> Connection:
        """One connection to the stream.

        Raises: DatabaseUnavailable, RunNotFound, StaleEpoch.
        """
        buffer, numbering, holding = LineBuffer(), Numbering(after), Holding()
        opened, ended = time.monotonic(), False
        trouble: HoldfastError | None = None
        async with asyncio.TaskGroup() as group:
            reader = group.create_task(self._fill(buffer, after))
            try:
                while not ended and numbering.gap is None and (lines := await buffer.take()):
                    ready = holding.take(numbering.take(lines))
                    if ready:
                        ended = await record(self._database, self._carried, ready)
                        patience.progress()
            except HoldfastError as error:
                trouble = error
            reader.cancel()
        if time.monotonic() - opened > STEADY:
            patience.hurry()
        if isinstance(trouble, DatabaseUnavailable | RunNotFound | StaleEpoch):
            raise trouble
        if trouble is not None:
            log.info("turn %s: the stream broke: %s", self._turn.id, trouble.message)
        gap = trouble if isinstance(trouble, StreamGap) else numbering.gap
        return Connection(ended, gap, numbering.last_n, holding.held)

    async def _fill(self, buffer: LineBuffer, after: int) -> None:
        trouble: HoldfastError | None = None
        try:
            async with contextlib.aclosing(self._sidecar.lines(self._turn.id, after)) as lines:
                async for line in lines:
                    await buffer.put(line)
        except HoldfastError as error:
            trouble = error
        await buffer.close(trouble)

    async def _interrupt(self, error: HoldfastError, held: Sequence[Numbered] = ()) -> None:
        """End the turn without the sidecar's word, and ask the sidecar to stop, if it can hear."""
        end = Numbered(None, TurnInterrupted(error=error_info(error)))
        await record(self._database, self._carried, [*held, end])
        await self._stop_run()

    async def _stop_run(self) -> None:
        with contextlib.suppress(HoldfastError):
            await self._sidecar.cancel(self._turn.id)

    async def _end(self, event: TurnFailed | TurnCancelled) -> None:
        await record_end(self._database, self._carried, event)
