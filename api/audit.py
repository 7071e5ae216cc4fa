"""Who did what: one record for every request that changes something, or was not allowed to."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import TYPE_CHECKING
from uuid import UUID

from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api import cursors
from api.db import audit
from api.db.audit import Deed
from api.db.pool import Database
from api.roles import SAFE_METHODS, matched
from contracts.bodies import AuditPage
from contracts.errors import HoldfastError, Unavailable

if TYPE_CHECKING:
    from api.auth import Caller

log = logging.getLogger(__name__)

SWEEP_EVERY = 3600.0
MOST_SUBJECT = 300
# Any number will do as long as nothing else in this database locks it.
LOCK = 0x61756469


class Audit:
    """An answer waits for its record for `record_within` seconds. `failures` counts the records
    that were lost, since the api was started."""

    def __init__(self, database: Database, days: float, rows: int, record_within: float) -> None:
        self._database = database
        self._days = timedelta(days=days)
        self._rows = rows
        self._record_within = record_within
        self._trouble = ""
        self.failures = 0

    @contextlib.asynccontextmanager
    async def serve(self) -> AsyncIterator[None]:
        """Forget what is old for the time of the block."""
        async with asyncio.TaskGroup() as group:
            task = group.create_task(self._run())
            try:
                yield
            finally:
                task.cancel()

    async def record(self, request: Request, caller: Caller, action: str, status: int) -> None:
        """Put one request on record. Never raises: what was done is done, and its answer is owed;
        a record that is lost is logged, counted, and told by `check` until one succeeds."""
        deed = _deed(request, caller, action, status)
        try:
            async with asyncio.timeout(self._record_within), self._database.connection() as conn:
                await audit.insert(conn, deed)
        except (HoldfastError, TimeoutError) as error:
            self._lost(deed, str(error) or f"no answer within {self._record_within:g} s")
        except Exception as error:  # the boundary: a mistake here must not fail what was asked for
            log.exception("the record of request %s was lost", deed.request_id)
            self._lost(deed, type(error).__name__)
        else:
            self._trouble = ""

    def _lost(self, deed: Deed, why: str) -> None:
        self.failures += 1
        self._trouble = why
        log.warning("not on record: %s (%s)", deed, why)

    async def check(self) -> None:
        """Raises: Unavailable when the last record was lost."""
        if self._trouble:
            raise Unavailable(f"{self.failures} records were lost, the last one: {self._trouble}")

    async def page(
        self, *, session_id: UUID | None, after: int, limit: int, cursor: str | None
    ) -> AuditPage:
        """Raises: InvalidInput for a foreign cursor."""
        before = None if cursor is None else _position(cursor)
        async with self._database.connection() as conn:
            found = await audit.page(
                conn, after=after, before=before, session_id=session_id, limit=limit + 1
            )
        more = len(found) > limit
        found = found[:limit]
        return AuditPage(entries=found, next_cursor=cursors.encode(found[-1].id) if more else None)

    async def sweep(self) -> int:
        """Remove what is too old, or too much; how many records that were.

        Raises: DatabaseUnavailable.
        """
        async with self._database.alone(LOCK) as alone:
            if not alone:
                return 0
            async with self._database.connection() as conn:
                return await audit.sweep(conn, self._days, self._rows)

    async def _run(self) -> None:
        while True:
            try:
                if gone := await self.sweep():
                    log.info("forgot %d old records of who did what", gone)
            except HoldfastError as error:
                log.warning("old records are not removed yet: %s", error.message)
            except Exception:  # the boundary: what fails once is tried again
                log.exception("old records are not removed yet")
            await asyncio.sleep(SWEEP_EVERY)


class Audited:
    """Puts a request on record as soon as the status of its answer is known, and before that is
    sent: who has an answer finds the record of it."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope) if scope["type"] == "http" else None
        caller: Caller | None = getattr(request.state, "caller", None) if request else None
        if request is None or caller is None or request.method in SAFE_METHODS:
            await self._app(scope, receive, send)
            return
        recorder: Audit = request.app.state.services.audit
        action = _action(request)
        known = False

        async def record(status: int) -> None:
            nonlocal known
            if not known:
                known = True
                await recorder.record(request, caller, action, status)

        async def recorded(message: Message) -> None:
            if message["type"] == "http.response.start":
                await record(message["status"])
            await send(message)

        try:
            await self._app(scope, receive, recorded)
        except asyncio.CancelledError:
            await record(Unavailable.status)  # what `Surround` answers then
            raise
        except Exception:
            await record(HoldfastError.status)
            raise


def _action(request: Request) -> str:
    found = matched(request.method, request.scope["path"])
    return (found.rule.action if found else "") or f"{request.method.lower()[:20]} (no route)"


def _deed(request: Request, caller: Caller, action: str, status: int) -> Deed:
    found = matched(request.method, request.scope["path"])
    params = dict(found.params) if found else {}
    session_id = _uuid(params.pop("sid", ""))
    subject = next(iter(params.values()), "")
    state = request.state
    return Deed(
        name=caller.name,
        role=caller.role,
        client=caller.client,
        action=action,
        session_id=getattr(state, "session_id", session_id),
        subject=_shown(getattr(state, "subject", subject)),
        status=status,
        request_id=getattr(state, "request_id", ""),
    )


def _uuid(text: str) -> UUID | None:
    try:
        return UUID(text)
    except ValueError:
        return None


def _shown(text: str) -> str:
    """For the record: one line, of bounded length, that the database takes."""
    plain = "".join(each if each.isprintable() else "\ufffd" for each in text[:MOST_SUBJECT])
    return plain.encode("utf-8", "replace").decode()


def _position(cursor: str) -> int:
    (position,) = cursors.decode(cursor, int)
    if not 0 < position < 2**63:
        raise cursors.refused()
    return int(position)
