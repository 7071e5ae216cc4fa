"""Turns: started in one transaction, carried to their end by a pump each."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING
from uuid import UUID

from uuid_utils.compat import uuid7

from api import cursors
from api.choices import Chosen, choose
from api.db import sandboxes, sessions, transcript, turns
from api.db.notify import Listener
from api.db.pool import Database
from api.db.turns import NewTurn, RunningTurn
from api.pump import Limits, Pump
from api.record import error_info, record_end
from api.sidecar import Sidecar
from contracts.bodies import MAX_PROMPT_CHARS, Choices, Session, Turn, TurnPage
from contracts.errors import (
    Conflict,
    HoldfastError,
    NoTurnRunning,
    SessionNotFound,
    TooLarge,
    TurnNotFound,
    TurnRunning,
)
from contracts.events import Message, TurnInterrupted, TurnStarted

if TYPE_CHECKING:
    from api.db.pool import Connection

log = logging.getLogger(__name__)

# A running turn that nobody carries (the database was away when its pump gave up) is picked
# up again after at most this long.
SWEEP_EVERY = 10.0
LOOK_EVERY = 1.0
TITLE_CHARS = 80


class Turns:
    def __init__(
        self, database: Database, sidecar: Sidecar, listener: Listener, limits: Limits
    ) -> None:
        self._database = database
        self._sidecar = sidecar
        self._listener = listener
        self._limits = limits
        self._pumps: dict[UUID, Pump] = {}
        self._tasks: dict[UUID, asyncio.Task[None]] = {}
        self._group: asyncio.TaskGroup | None = None

    @contextlib.asynccontextmanager
    async def serve(self) -> AsyncIterator[None]:
        """Carry turns for the time of the block; what still runs at its end is left as it is."""
        async with asyncio.TaskGroup() as group:
            self._group = group
            sweeper = group.create_task(self._sweep())
            try:
                yield
            finally:
                self._group = None
                sweeper.cancel()
                for task in list(self._tasks.values()):
                    task.cancel()

    async def start(self, session_id: UUID, prompt: str, asked: Choices) -> Turn:
        """Start a turn; it goes on whether anyone follows it or not.

        Raises: SessionNotFound, TurnRunning, TooLarge, and what `choose` raises.
        """
        check_prompt(prompt)
        async with self._database.connection() as conn:
            session = await sessions.get(conn, session_id)
        if session is None:
            raise session_not_found(session_id)
        chosen = choose(asked, session, await self._sidecar.capabilities())
        async with self._database.transaction() as conn:
            turn, running = await _insert(conn, session, prompt, chosen)
        self._carry(running)
        return turn

    async def get(self, session_id: UUID, turn_id: UUID) -> Turn:
        """Raises: TurnNotFound."""
        async with self._database.connection() as conn:
            turn = await turns.get(conn, session_id, turn_id)
        if turn is None:
            raise turn_not_found(turn_id)
        return turn

    async def page(self, session_id: UUID, *, limit: int, cursor: str | None) -> TurnPage:
        """Raises: InvalidInput for a foreign cursor."""
        after = cursors.decode(cursor, int)[0] if cursor is not None else 0
        if not 0 <= after < 2**63:
            raise cursors.refused()
        async with self._database.connection() as conn:
            found = await turns.page(conn, session_id, after_epoch=after, limit=limit + 1)
        shown = found[:limit]
        next_cursor = cursors.encode(shown[-1][0]) if len(found) > limit else None
        return TurnPage(turns=[turn for _, turn in shown], next_cursor=next_cursor)

    async def cancel(self, session_id: UUID, turn_id: UUID) -> Turn:
        """Ask for the end of a turn; asking twice is asking once.

        Raises: TurnNotFound, NoTurnRunning when it has ended already.
        """
        async with self._database.transaction() as conn:
            found = await turns.request_cancel(conn, session_id, turn_id)
            turn = await turns.get(conn, session_id, turn_id)
        if turn is None:
            raise turn_not_found(turn_id)
        if not found:
            raise NoTurnRunning(
                f"The turn has ended already: {turn.state}.", hint="There is nothing to cancel."
            )
        pump = self._pumps.get(turn_id)
        if pump is not None:
            pump.cancel()
        return turn

    async def wait_for_end(self, session_id: UUID, turn_id: UUID, within: float) -> bool:
        """Wait until a turn has ended; false when it has not by then."""
        try:
            async with asyncio.timeout(within):
                with self._listener.subscribe(session_id) as changed:
                    while True:
                        changed.clear()
                        async with self._database.connection() as conn:
                            if await turns.running_one(conn, turn_id) is None:
                                return True
                        with contextlib.suppress(TimeoutError):
                            async with asyncio.timeout(LOOK_EVERY):
                                await changed.wait()
        except TimeoutError:
            return False

    async def abandon(self, turn_id: UUID, error: HoldfastError) -> None:
        """End a turn whose run does not end, and stop carrying it."""
        task = self._tasks.get(turn_id)
        if task is not None:
            task.cancel()
        event = TurnInterrupted(error=error_info(error))
        await record_end(self._database, turn_id, event)

    async def _sweep(self) -> None:
        """At the start and then every so often: carry every running turn that nobody carries."""
        while True:
            try:
                async with self._database.connection() as conn:
                    for running in await turns.running(conn):
                        self._carry(running)
            except HoldfastError as error:
                log.warning("could not look for running turns: %s", error.message)
            except Exception:  # the boundary: a sweep that fails must not end the service
                log.exception("could not look for running turns")
            await asyncio.sleep(SWEEP_EVERY)

    def _carry(self, turn: RunningTurn) -> None:
        if turn.id in self._tasks or self._group is None:
            return
        pump = Pump(turn, self._database, self._sidecar, self._limits)
        self._pumps[turn.id] = pump
        task = self._group.create_task(self._pump(turn, pump))
        self._tasks[turn.id] = task
        task.add_done_callback(lambda _: self._forget(turn.id))

    def _forget(self, turn_id: UUID) -> None:
        self._tasks.pop(turn_id, None)
        self._pumps.pop(turn_id, None)

    async def _pump(self, turn: RunningTurn, pump: Pump) -> None:
        try:
            await pump.run()
        except HoldfastError as error:
            # the end could not be stored; the sweep takes the turn up again
            log.warning("turn %s is left for later: %s", turn.id, error.message)
        except Exception:  # the boundary: a turn that fails must not end the service
            log.exception("turn %s failed in the api", turn.id)
            failure = HoldfastError(
                "The api failed while it carried the turn.", hint="See the log of the api."
            )
            try:
                await record_end(
                    self._database, turn.id, TurnInterrupted(error=error_info(failure))
                )
                await self._sidecar.cancel(turn.id)
            except HoldfastError as error:
                log.warning("turn %s: after its failure: %s", turn.id, error.message)


async def _insert(
    conn: Connection, session: Session, prompt: str, chosen: Chosen
) -> tuple[Turn, RunningTurn]:
    """All rows of a new turn, or none.

    Raises: SessionNotFound, Conflict, TurnRunning.
    """
    locked = await sessions.lock(conn, session.id)
    if locked is None:
        raise session_not_found(session.id)
    if locked.deleting:
        raise Conflict("The session is being deleted.", hint="Delete it again to finish that.")
    if locked.running_turn is not None:
        raise TurnRunning(
            "A turn is running in this session.",
            hint="Wait for its end, or cancel it.",
            turn_id=str(locked.running_turn),
        )
    turn_id, epoch = uuid7(), locked.epoch + 1
    how = {name: getattr(chosen, name) for name in Chosen.__dataclass_fields__}
    new = NewTurn(turn_id, session.id, epoch, prompt, **how, first_seq=locked.last_seq + 1)
    await sessions.start_turn(conn, session.id, epoch, title_of(prompt))
    await turns.insert(conn, new)
    await sandboxes.intend(conn, session.id, turn_id, chosen.provider, epoch)
    place = await transcript.lock(conn, turn_id)
    assert place is not None
    opening = (TurnStarted(**how), Message(role="user", text=prompt))
    await transcript.append(conn, turn_id, place, [transcript.prepare(event) for event in opening])
    turn = await turns.get(conn, session.id, turn_id)
    running = await turns.running_one(conn, turn_id)
    assert turn is not None
    assert running is not None
    return turn, running


def title_of(prompt: str) -> str:
    """A session that was given no title is called by its first prompt."""
    words = " ".join("".join(c if c.isprintable() else " " for c in prompt[:1000]).split())
    return words if len(words) <= TITLE_CHARS else words[: TITLE_CHARS - 1] + "…"


def check_prompt(prompt: str) -> None:
    """Raises: TooLarge."""
    if len(prompt) > MAX_PROMPT_CHARS:
        raise TooLarge(
            f"The prompt has {len(prompt)} characters, the limit is {MAX_PROMPT_CHARS}.",
            hint="Put long texts into a file of the workspace.",
        )


def session_not_found(session_id: UUID) -> SessionNotFound:
    return SessionNotFound(
        f"There is no session {session_id}.", hint="GET /sessions lists those there are."
    )


def turn_not_found(turn_id: UUID) -> TurnNotFound:
    return TurnNotFound(
        f"There is no turn {turn_id} in this session.",
        hint="GET /sessions/{sid}/turns lists those there are.",
    )
