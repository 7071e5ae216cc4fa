"""The ledger of sandboxes, held against what the providers say: proofs of death, and leaks."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Literal
from uuid import UUID

from api.db import sandboxes, sessions
from api.db.pool import Database
from api.db.sandboxes import Entry
from api.sidecar import Sidecar
from contracts.bodies import Leak, SandboxBody
from contracts.errors import HoldfastError

if TYPE_CHECKING:
    from api.db.pool import Connection

log = logging.getLogger(__name__)

# An entry that cannot be checked (its provider cannot be asked) is told after this long.
UNPROVEN_AFTER = timedelta(seconds=60)
# Any number will do as long as nothing else in this database locks it.
LOCK = 0x6C656467


@dataclass(frozen=True)
class Listed:
    """What the providers say is alive, and which of them were asked."""

    boxes: list[SandboxBody]
    asked: frozenset[str]


@dataclass(frozen=True)
class Suspects:
    # boxes that nothing answers for
    unknown: list[Leak]
    # what is wrong and is not ours to end
    others: list[Leak]
    # entries whose box is not listed by their provider, which was asked
    missing: list[Entry]


class Ledger:
    def __init__(self, database: Database, sidecar: Sidecar, reconcile_every: float) -> None:
        self._database = database
        self._sidecar = sidecar
        self._reconcile_every = reconcile_every

    @contextlib.asynccontextmanager
    async def serve(self) -> AsyncIterator[None]:
        """Reconcile every so often for the time of the block."""
        async with asyncio.TaskGroup() as group:
            task = group.create_task(self._run())
            try:
                yield
            finally:
                task.cancel()

    async def leaks(self) -> list[Leak]:
        """What lives, or may live, and nothing answers for, as the providers tell it now.

        Raises: SidecarUnavailable, DatabaseUnavailable, SandboxError.
        """
        found = await self._confirmed()
        return [*found.unknown, *found.others]

    async def reconcile(self) -> None:
        """Close entries whose box is gone, and end boxes that nothing answers for.

        Raises: SidecarUnavailable, DatabaseUnavailable, SandboxError.
        """
        async with self._database.alone(LOCK) as alone:
            if not alone:
                return
            for leak in (await self._confirmed()).unknown:
                await self._end(leak)

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self._reconcile_every)
            try:
                await self.reconcile()
            except HoldfastError as error:
                log.info("the ledger was not reconciled: %s", error.message)
            except Exception:  # the boundary: a failed pass must not end the service
                log.exception("the ledger was not reconciled")

    async def _confirmed(self) -> Suspects:
        """Looked at twice: a box that is on its way in or out is no leak, and one that a listing
        left out once is not gone. Entries whose box was missing both times are closed."""
        first = await self._look()
        if not first.unknown and not first.others and not first.missing:
            return first
        second = await self._look()
        missing = [entry for entry in second.missing if entry in first.missing]
        for entry in missing:
            await self._close(entry)
        return Suspects(
            _also_in(second.unknown, first.unknown),
            _also_in(second.others, first.others),
            missing,
        )

    async def _look(self) -> Suspects:
        async with self._database.connection() as conn:
            before = await sandboxes.unproven(conn)
        listed = await self._listed()
        missing = [entry for entry in before if await self._is_missing(entry, listed)]
        async with self._database.connection() as conn:
            entries = await sandboxes.unproven(conn)
            in_use = await sandboxes.sessions_in_use(conn)
        known = {(entry.provider, entry.provider_id) for entry in entries}
        unknown = [
            _leak(box, "unknown", "no entry of the ledger knows it")
            for box in listed.boxes
            if box.session_id not in in_use and (box.provider, box.sandbox_id) not in known
        ]
        others = [*_rivals(listed.boxes), *_unchecked(entries, listed.asked)]
        return Suspects(unknown, others, missing)

    async def _listed(self) -> Listed:
        told = await self._sidecar.sandboxes()
        return Listed([box for box in told.sandboxes if box.state != "gone"], frozenset(told.asked))

    async def _is_missing(self, entry: Entry, listed: Listed) -> bool:
        """Whether the entry's box is not there. An intent whose box is there gets it."""
        if entry.in_use or entry.provider not in listed.asked:
            return False
        boxes = [
            box.sandbox_id
            for box in listed.boxes
            if (box.provider, box.session_id) == (entry.provider, entry.session_id)
        ]
        if entry.provider_id in boxes or (entry.provider_id is None and len(boxes) > 1):
            return False
        if entry.state == "live" or not boxes:
            return True
        async with self._database.transaction() as conn:
            if await _is_idle(conn, entry):
                await sandboxes.adopt(conn, entry, boxes[0])
        return False

    async def _close(self, entry: Entry) -> None:
        at = datetime.now(UTC).isoformat(timespec="seconds")
        async with self._database.transaction() as conn:
            if await _is_idle(conn, entry):
                await sandboxes.close(conn, entry, f"not listed by {entry.provider} at {at}")

    async def _end(self, leak: Leak) -> None:
        assert leak.sandbox_id is not None
        assert leak.session_id is not None
        try:
            ended = await self._sidecar.destroy(leak.provider, leak.sandbox_id)
        except HoldfastError as error:
            log.warning("leaked sandbox %s was not ended: %s", leak.sandbox_id, error.message)
            return
        log.warning("leaked sandbox %s was ended: %s", leak.sandbox_id, ended.proof)
        async with self._database.connection() as conn:
            await sandboxes.mark_destroyed(conn, leak.session_id, leak.sandbox_id, ended.proof)


async def _is_idle(conn: Connection, entry: Entry) -> bool:
    """Whether no turn of the entry's session runs, nor starts until the transaction ends."""
    locked = await sessions.lock(conn, entry.session_id)
    return locked is not None and locked.running_turn is None


def _leak(box: SandboxBody, code: Literal["unknown", "rival"], reason: str) -> Leak:
    return Leak(
        provider=box.provider,
        sandbox_id=box.sandbox_id,
        session_id=box.session_id,
        since=box.created_at,
        code=code,
        reason=reason,
    )


def _rivals(boxes: Sequence[SandboxBody]) -> list[Leak]:
    counts: Counter[UUID] = Counter(box.session_id for box in boxes)
    return [
        _leak(box, "rival", f"its session has {counts[box.session_id]} living sandboxes")
        for box in boxes
        if counts[box.session_id] > 1
    ]


def _unchecked(entries: Iterable[Entry], asked: frozenset[str]) -> list[Leak]:
    oldest = datetime.now(UTC) - UNPROVEN_AFTER
    return [
        Leak(
            provider=entry.provider,
            sandbox_id=entry.provider_id,
            session_id=entry.session_id,
            since=entry.created_at,
            code="unproven",
            reason=f"its death is not proven: {entry.provider} cannot be asked",
        )
        for entry in entries
        if entry.provider not in asked and not entry.in_use and entry.created_at < oldest
    ]


def _also_in(now: Iterable[Leak], before: Iterable[Leak]) -> list[Leak]:
    seen = {(leak.provider, leak.sandbox_id, leak.session_id) for leak in before}
    return [leak for leak in now if (leak.provider, leak.sandbox_id, leak.session_id) in seen]
