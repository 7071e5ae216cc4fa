"""A turn on its way: handed to the sidecar, its stream brought into the transcript."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from dataclasses import dataclass

from api.db import turns
from api.db.pool import Database
from api.db.turns import RunningTurn
from api.lines import LineBuffer, Numbering
from api.patience import Patience
from api.record import error_info, record, record_end
from api.sidecar import Sidecar
from contracts.bodies import RunRequest
from contracts.errors import (
    DatabaseUnavailable,
    HarnessExited,
    HoldfastError,
    RunNotFound,
    StreamGap,
    Unavailable,
)
from contracts.events import TurnCancelled, TurnFailed, TurnInterrupted

log = logging.getLogger(__name__)

# A connection that lasted this long was a good one, even if no line came through it.
STEADY = 5.0


@dataclass(frozen=True)
class Limits:
    """How long a turn waits for a sidecar that is away, in seconds, and how often for a gap."""

    start_within: float = 60.0
    follow_within: float = 300.0
    gap_tries: int = 5


class Pump:
    """Carries one turn to its end. Everything that it has to know is in the database."""

    def __init__(
        self, turn: RunningTurn, database: Database, sidecar: Sidecar, limits: Limits
    ) -> None:
        self._turn = turn
        self._database = database
        self._sidecar = sidecar
        self._limits = limits
        self._cancelled = asyncio.Event()
        if turn.cancel_requested:
            self._cancelled.set()

    def cancel(self) -> None:
        """Pass the wish on; the end comes through the stream."""
        self._cancelled.set()

    async def run(self) -> None:
        """Returns when the turn has ended.

        Raises: DatabaseUnavailable when the end could not be stored.
        """
        if not self._turn.accepted and not await self._start():
            return
        trouble: HoldfastError | None = None
        async with asyncio.TaskGroup() as group:
            canceller = group.create_task(self._deliver_cancel())
            try:
                await self._follow()
            except HoldfastError as error:
                trouble = error  # as itself, not as a group of one
            canceller.cancel()
        if trouble is not None:
            raise trouble

    async def _start(self) -> bool:
        """Hand the turn over; false when it ended without ever being taken."""
        patience = Patience(self._limits.start_within)
        while True:
            try:
                if self._cancelled.is_set():
                    await self._sidecar.cancel(self._turn.id)
                else:
                    await self._sidecar.start(self._request())
                async with self._database.connection() as conn:
                    await turns.mark_accepted(conn, self._turn.id)
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

    def _request(self) -> RunRequest:
        fields = RunRequest.model_fields.keys() - {"turn_id", "past", "turns_before"}
        turn = self._turn
        return RunRequest(turn_id=turn.id, **{name: getattr(turn, name) for name in fields})

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

        Raises: DatabaseUnavailable when it stays away for too long.
        """
        patience = Patience(self._limits.follow_within)
        lines_in_all: int | None = None
        gaps = 0
        while True:
            trouble: HoldfastError | None = None
            try:
                after = await self._stored()
                if after is None:
                    return
                if lines_in_all is not None and after >= lines_in_all:
                    await self._interrupt(
                        HarnessExited("The run ended without saying how.", hint="Start another.")
                    )
                    return
                ended, gap = await self._read(after, patience)
                if ended:
                    return
                gaps = gaps + 1 if gap is not None else 0
                run = await self._sidecar.run(self._turn.id)
                if run.state == "running":
                    patience.alive()
                else:
                    lines_in_all = run.last_n
                if gap is not None and gaps >= self._limits.gap_tries:
                    await self._interrupt(gap)
                    return
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

    async def _read(self, after: int, patience: Patience) -> tuple[bool, StreamGap | None]:
        """One connection to the stream; says whether the turn ended, else what was missing.

        Raises: DatabaseUnavailable, RunNotFound.
        """
        buffer, numbering = LineBuffer(), Numbering(after)
        opened, ended = time.monotonic(), False
        trouble: HoldfastError | None = None
        async with asyncio.TaskGroup() as group:
            reader = group.create_task(self._fill(buffer, after))
            try:
                while not ended and numbering.gap is None and (lines := await buffer.take()):
                    taken = numbering.take(lines)
                    if taken:
                        ended = await record(self._database, self._turn.id, taken)
                        patience.progress()
            except HoldfastError as error:
                trouble = error
            reader.cancel()
        if time.monotonic() - opened > STEADY:
            patience.hurry()
        if isinstance(trouble, DatabaseUnavailable | RunNotFound):
            raise trouble
        if trouble is not None:
            log.info("turn %s: the stream broke: %s", self._turn.id, trouble.message)
        return ended, trouble if isinstance(trouble, StreamGap) else numbering.gap

    async def _fill(self, buffer: LineBuffer, after: int) -> None:
        trouble: HoldfastError | None = None
        try:
            async with contextlib.aclosing(self._sidecar.lines(self._turn.id, after)) as lines:
                async for line in lines:
                    await buffer.put(line)
        except HoldfastError as error:
            trouble = error
        await buffer.close(trouble)

    async def _interrupt(self, error: HoldfastError) -> None:
        """End the turn without the sidecar's word, and ask the sidecar to stop, if it can hear."""
        await self._end(TurnInterrupted(error=error_info(error)))
        with contextlib.suppress(HoldfastError):
            await self._sidecar.cancel(self._turn.id)

    async def _end(self, event: TurnFailed | TurnCancelled | TurnInterrupted) -> None:
        await record_end(self._database, self._turn.id, event)
