"""Turns: started or queued in one transaction, read, cancelled, waited for."""

from __future__ import annotations

import asyncio
import contextlib
from uuid import UUID

from uuid_utils.compat import uuid7

from api import cursors
from api.carrier import Carrier
from api.choices import Chosen, choose
from api.db import notify, sessions, turns
from api.db.notify import Listener
from api.db.pool import Database
from api.db.sessions import Locked
from api.db.turns import InOrder, NewTurn
from api.grants import OPENING, begin
from api.quota import Quotas
from api.sidecar import Sidecar
from contracts.bodies import Choices, Turn, TurnPage
from contracts.errors import (
    Conflict,
    NoTurnRunning,
    SessionNotFound,
    TooLarge,
    TurnNotFound,
    TurnRunning,
)

LOOK_EVERY = 1.0


class Turns:
    def __init__(
        self,
        database: Database,
        sidecar: Sidecar,
        listener: Listener,
        carrier: Carrier,
        quotas: Quotas,
        prompt_chars: int,
        max_queued: int,
    ) -> None:
        self._quotas = quotas
        self._prompt_chars = prompt_chars
        self._max_queued = max_queued
        self._database = database
        self._sidecar = sidecar
        self._listener = listener
        self._carrier = carrier

    async def start(
        self, session_id: UUID, prompt: str, asked: Choices, *, queue: bool = False
    ) -> Turn:
        """Start a turn, or with `queue` let it wait for those before it; it needs no follower.

        Raises: SessionNotFound, Conflict, OverQuota, TurnRunning, TooLarge, and what `choose`
        raises.
        """
        self.check_prompt(prompt)
        async with self._database.connection() as conn:
            session = await sessions.get(conn, session_id)
        if session is None:
            raise session_not_found(session_id)
        await self._quotas.check(session)
        chosen = choose(asked, session, await self._sidecar.capabilities())
        how = {name: getattr(chosen, name) for name in Chosen.__dataclass_fields__}
        new = NewTurn(uuid7(), session_id, prompt, **how)
        running = None
        async with self._database.transaction() as conn:
            locked = await sessions.lock(conn, session_id)
            if locked is None:
                raise session_not_found(session_id)
            must_wait = check_place(locked, queue)
            most = self._max_queued
            if must_wait and await turns.queued(conn, session_id) >= most:
                raise Conflict(f"{most} turns wait in this session.", hint="Wait for some.")
            await turns.insert(conn, new, locked.last_seq + 1)
            if must_wait:
                await notify.notify(conn, session_id)
            else:
                running = await begin(conn, session_id, new.id, locked, self._carrier.holder)
            turn = await turns.get(conn, session_id, new.id)
        if running is not None:
            self._database.metrics.began(OPENING)
            self._carrier.carry(running)
        assert turn is not None
        return turn

    def check_prompt(self, prompt: str) -> None:
        """Raises: TooLarge."""
        if len(prompt) > self._prompt_chars:
            raise TooLarge(
                f"The prompt has {len(prompt)} characters, the limit is {self._prompt_chars}"
                " (HOLDFAST_PROMPT_CHARS).",
                hint="Put long texts into a file of the workspace.",
            )

    async def get(self, session_id: UUID, turn_id: UUID) -> Turn:
        """Raises: TurnNotFound."""
        async with self._database.connection() as conn:
            turn = await turns.get(conn, session_id, turn_id)
        if turn is None:
            raise turn_not_found(turn_id)
        return turn

    async def proven_before(self, session_id: UUID, turn_id: UUID) -> UUID | None:
        """The last turn before this one that has a receipt."""
        async with self._database.connection() as conn:
            return await turns.proven_before(conn, session_id, turn_id)

    async def page(self, session_id: UUID, *, limit: int, cursor: str | None) -> TurnPage:
        """Raises: InvalidInput for a foreign cursor."""
        after = InOrder()
        if cursor is not None:
            after = InOrder(*cursors.decode(cursor, int, int))
        if not (0 <= after.epoch < 2**63 and 0 <= after.position < 2**63):
            raise cursors.refused()
        async with self._database.connection() as conn:
            found = await turns.page(conn, session_id, after=after, limit=limit + 1)
        shown = found[:limit]
        next_cursor = None
        if len(found) > limit:
            last = shown[-1][0]
            next_cursor = cursors.encode(last.epoch, last.position)
        return TurnPage(turns=[turn for _, turn in shown], next_cursor=next_cursor)

    async def cancel(self, session_id: UUID, turn_id: UUID) -> Turn:
        """Ask for the end of a turn; asking twice is asking once. One that waits ends at once.

        Raises: TurnNotFound, NoTurnRunning when it has ended already.
        """
        async with self._database.transaction() as conn:
            await sessions.lock(conn, session_id)
            dropped = await turns.drop_queued(conn, session_id, turn_id)
            asked = await turns.request_cancel(conn, session_id, turn_id)
            turn = await turns.get(conn, session_id, turn_id)
            # whichever process carries it; and whoever waits for it
            await notify.notify(conn, turn_id)
            await notify.notify(conn, session_id)
        if turn is None:
            raise turn_not_found(turn_id)
        if not dropped and not asked:
            raise NoTurnRunning(
                f"The turn has ended already: {turn.state}.", hint="There is nothing to cancel."
            )
        self._carrier.cancel(turn_id)
        return turn

    async def wait_for_end(self, session_id: UUID, turn_id: UUID, within: float) -> bool:
        """Wait until a turn has ended; false when it has not by then."""
        try:
            async with asyncio.timeout(within):
                with self._listener.subscribe(session_id) as changed:
                    while True:
                        changed.clear()
                        async with self._database.connection() as conn:
                            if await turns.has_ended(conn, turn_id):
                                return True
                        with contextlib.suppress(TimeoutError):
                            async with asyncio.timeout(LOOK_EVERY):
                                await changed.wait()
        except TimeoutError:
            return False


def check_place(locked: Locked, queue: bool) -> bool:
    """Whether a new turn must wait for those before it.

    Raises: Conflict when the session takes no turn, TurnRunning when waiting was not asked for.
    """
    if locked.deleting:
        raise Conflict("The session is being deleted.", hint="Delete it again to finish that.")
    before = locked.running_turn or locked.next_queued
    if before is not None and not queue:
        raise TurnRunning(
            "A turn is running in this session.",
            hint="Wait for its end, cancel it, or send this one with `queue`.",
            turn_id=str(before),
        )
    # a backup takes moments: nobody is sent away for it
    return before is not None or locked.held


def session_not_found(session_id: UUID) -> SessionNotFound:
    return SessionNotFound(
        f"There is no session {session_id}.", hint="GET /sessions lists those there are."
    )


def turn_not_found(turn_id: UUID) -> TurnNotFound:
    return TurnNotFound(
        f"There is no turn {turn_id} in this session.",
        hint="GET /sessions/{sid}/turns lists those there are.",
    )
