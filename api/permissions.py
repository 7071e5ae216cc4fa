"""Answers to what harnesses ask: accepted once, kept, and delivered by whoever carries the turn."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Sequence
from datetime import timedelta
from uuid import UUID

from api.db import notify, permissions
from api.db.notify import Listener
from api.db.permissions import Undelivered
from api.db.pool import Database
from api.db.turns import RunningTurn
from api.patience import Patience
from api.sidecar import Sidecar
from contracts.bodies import Permission, PermissionOption
from contracts.errors import (
    AlreadyAnswered,
    HoldfastError,
    InvalidInput,
    PermissionNotFound,
    Unavailable,
)

log = logging.getLogger(__name__)

TIMEOUT = "timeout"
# How soon an answer that is overdue is given; one that somebody gives is told by NOTIFY.
LOOK_EVERY = 1.0
# A turn that is not asked about has nothing overdue; what is answered all the same is notified.
LOOK_IDLY_EVERY = 15.0
# A sidecar that is away may take long to come back; the turn has its own bound for that.
DELIVER_WITHIN = 600.0


class Permissions:
    def __init__(self, database: Database, lasts: float) -> None:
        self._database = database
        self._lasts = timedelta(seconds=lasts)

    async def page(self, session_id: UUID, *, pending: bool) -> list[Permission]:
        async with self._database.connection() as conn:
            return await permissions.page(conn, session_id, pending=pending, lasts=self._lasts)

    async def answer(
        self, session_id: UUID, permission_id: str, option_id: str, by: str
    ) -> Permission:
        """Raises: PermissionNotFound, AlreadyAnswered, InvalidInput for an option there is not."""
        async with self._database.transaction() as conn:
            held = await permissions.hold(conn, session_id, permission_id, self._lasts)
            if held is None:
                raise PermissionNotFound(
                    f"Nothing was asked under the id {permission_id[:100]!r}.",
                    hint="GET /sessions/{sid}/permissions lists what was.",
                )
            if held.state != "pending":
                raise _already(held)
            known = [option.option_id for option in held.options]
            if option_id not in known:
                raise InvalidInput(
                    f"There is no option {option_id[:100]!r}.",
                    hint=f"Use one of: {', '.join(known)}.",
                )
            answered = await permissions.answer(conn, held, option_id, by)
            # whichever process carries the turn; and whoever shows the session
            await notify.notify(conn, held.turn_id)
            await notify.notify(conn, session_id)
        return answered


def _already(held: Permission) -> AlreadyAnswered:
    if held.state == "closed":
        return AlreadyAnswered(
            "The turn has ended; this cannot be answered any more.",
            hint="Send another prompt.",
            answered_by="turn",
        )
    at = None if held.answered_at is None else held.answered_at.isoformat()
    return AlreadyAnswered(
        f"This was answered already, by {held.answered_by}.",
        hint="There is nothing left to answer.",
        answered_by=held.answered_by,
        option_id=held.option_id,
        answered_at=at,
    )


def rejecting(options: Sequence[PermissionOption]) -> str | None:
    """The option that says no; None withdraws the request, where there is none."""
    for kind in ("reject_once", "reject_always"):
        for option in options:
            if option.kind == kind:
                return option.option_id
    return None


class Delivery:
    """Brings the answers of one turn to its run, and answers what nobody answers in time."""

    def __init__(
        self,
        turn: RunningTurn,
        database: Database,
        sidecar: Sidecar,
        listener: Listener,
        lasts: float,
    ) -> None:
        self._turn = turn
        self._database = database
        self._sidecar = sidecar
        self._listener = listener
        self._lasts = timedelta(seconds=lasts)
        self._look_every = LOOK_EVERY if turn.permissions == "ask" else LOOK_IDLY_EVERY
        self._delivered: set[str] = set()  # taken by the sidecar; the run's word is on its way

    async def serve(self) -> None:
        """For as long as the turn runs."""
        with self._listener.subscribe(self._turn.id) as changed:
            while True:
                changed.clear()
                try:
                    await self.deliver()
                except HoldfastError as error:
                    log.info("turn %s: answers are left for later: %s", self._turn.id, error)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self._look_every):
                        await changed.wait()

    async def deliver(self) -> None:
        """Answer what is overdue, and bring to the run what it has not confirmed.

        Raises: DatabaseUnavailable; HoldfastError, when the sidecar stays away for too long.
        """
        await self._reject_overdue()
        await self._deliver_all()

    async def _reject_overdue(self) -> None:
        async with self._database.connection() as conn:
            overdue = await permissions.overdue(conn, self._turn.id, self._lasts)
        for permission_id in overdue:
            async with self._database.transaction() as conn:
                held = await permissions.hold(
                    conn, self._turn.session_id, permission_id, self._lasts
                )
                if held is None or held.state != "pending":
                    continue
                await permissions.answer(conn, held, rejecting(held.options), TIMEOUT)
                await notify.notify(conn, self._turn.session_id)

    async def _deliver_all(self) -> None:
        async with self._database.connection() as conn:
            waiting = await permissions.undelivered(conn, self._turn.id)
        for each in waiting:
            if each.permission_id not in self._delivered:
                await self._deliver(each)
                self._delivered.add(each.permission_id)

    async def _deliver(self, one: Undelivered) -> None:
        """Raises: HoldfastError, when the sidecar stays away for too long."""
        reason = ""
        if one.answer.by == TIMEOUT:
            reason = f"nobody answered within {self._lasts.total_seconds():g} s"
        answer = one.answer.model_copy(update={"reason": reason})
        patience = Patience(DELIVER_WITHIN)
        while True:
            try:
                await self._sidecar.answer(self._turn.id, one.permission_id, answer)
            except Unavailable:
                if not await patience.pause():
                    raise
            else:
                return
