"""Sessions: made with choices that can work, deleted with all that belongs to them."""

from __future__ import annotations

from datetime import datetime
from uuid import UUID

from uuid_utils.compat import uuid7

from api import cursors
from api.carrier import Carrier
from api.choices import Chosen, check_egress, choose, storable
from api.db import notify, sandboxes, search, sessions, turns, usage
from api.db.pool import Database
from api.db.sessions import Wanted
from api.settings import Settings
from api.sidecar import Sidecar
from api.store import Stores
from api.turns import Turns, session_not_found
from contracts.bodies import (
    Destroyed,
    Killed,
    SandboxList,
    Session,
    SessionContents,
    SessionCreate,
    SessionDeleted,
    SessionPage,
    SessionPatch,
    Terms,
)
from contracts.errors import (
    Conflict,
    NoTurnRunning,
    SandboxNotFound,
    TooManySessions,
    TurnRunning,
)

# How long a delete waits for the running turn to end by itself before it is cut off.
CANCEL_WITHIN = 20.0


class Sessions:
    def __init__(
        self,
        database: Database,
        stores: Stores,
        sidecar: Sidecar,
        turns: Turns,
        carrier: Carrier,
        settings: Settings,
    ) -> None:
        self._database = database
        self._stores = stores
        self._sidecar = sidecar
        self._turns = turns
        self._carrier = carrier
        self._most = settings.sessions_per_token
        self._defaults = Chosen(
            settings.default_harness, settings.default_provider, None, None, "auto"
        )

    async def create(self, body: SessionCreate, made_by: str) -> Session:
        """A session of the token that is called `made_by`.

        Raises: InvalidInput, TooManySessions, and what `choose` raises.
        """
        storable("title", body.title)
        capabilities = await self._sidecar.capabilities()
        chosen = choose(body, self._defaults, capabilities)
        check_egress(body, "off", chosen.provider, capabilities)
        new = sessions.NewSession(
            uuid7(),
            body.title,
            chosen.harness,
            chosen.provider,
            chosen.model,
            chosen.reasoning,
            chosen.permissions,
            chosen.durability,
            made_by,
            body.egress or "off",
            body.egress_hosts or (),
            body.budget,
        )
        async with self._database.transaction() as conn:
            if await sessions.count_made_by(conn, made_by) >= self._most:
                raise TooManySessions(
                    f"The token {made_by!r} has made {self._most} sessions, which is the limit.",
                    hint="Delete some of them, or raise HOLDFAST_SESSIONS_PER_TOKEN.",
                    limit=self._most,
                )
            return await sessions.insert(conn, new)

    async def get(self, session_id: UUID) -> Session:
        """Raises: SessionNotFound."""
        async with self._database.connection() as conn:
            session = await sessions.get(conn, session_id)
        if session is None:
            raise session_not_found(session_id)
        return session

    async def page(self, wanted: Wanted, *, limit: int, cursor: str | None) -> SessionPage:
        """Raises: InvalidInput for a foreign cursor."""
        before = None
        if cursor is not None:
            at, session_id = cursors.decode(cursor, str, str)
            try:
                before = (datetime.fromisoformat(at), UUID(session_id))
            except ValueError:
                raise cursors.refused() from None
            if before[0].tzinfo is None:
                raise cursors.refused()
        async with self._database.connection() as conn:
            found = await sessions.page(conn, wanted, before=before, limit=limit + 1)
            more = len(found) > limit
            found = found[:limit]
            if wanted.sought.queries:
                hits = await search.matches(conn, [each.id for each in found], wanted.sought)
                found = [each.model_copy(update={"match": hits.get(each.id)}) for each in found]
        next_cursor = (
            cursors.encode(found[-1].updated_at.isoformat(), str(found[-1].id)) if more else None
        )
        return SessionPage(sessions=found, next_cursor=next_cursor)

    async def contents(self, session_id: UUID) -> SessionContents:
        """What a delete would remove, counted now.

        Raises: SessionNotFound, SidecarUnavailable, StoreUnavailable.
        """
        session = await self.get(session_id)
        async with self._database.connection() as conn:
            rows = await sessions.count(conn, session_id)
        files = await self._stores.sessions.measure(str(session_id))
        state = await self._stores.state.measure(str(session_id))
        boxes = (await self._sidecar.sandboxes()).sandboxes
        return SessionContents(
            session_id=session_id,
            turns=rows.turns,
            events=rows.events,
            files=files.objects,
            bytes=files.bytes,
            state_objects=state.objects,
            sandboxes=sum(box.session_id == session_id and box.state != "gone" for box in boxes),
            running_turn=session.running_turn,
            queued=session.queued,
        )

    async def patch(self, session_id: UUID, body: SessionPatch) -> Session:
        """Egress holds from the next turn on, a budget for a running turn too.

        Raises: SessionNotFound, InvalidInput, UnsupportedChoice; SidecarUnavailable, when a running
        turn's budget could not be changed: it holds from the next turn on, or when this is asked
        again.
        """
        storable("title", body.title)
        if body.egress is not None or body.egress_hosts is not None:
            session = await self.get(session_id)
            capabilities = await self._sidecar.capabilities()
            check_egress(body, session.egress, session.provider, capabilities)
        if body != SessionPatch():
            async with self._database.connection() as conn:
                await sessions.patch(conn, session_id, body)
        if "budget" in body.model_fields_set:
            async with self._database.connection() as conn:
                await usage.set_budget(conn, session_id, body.budget)
        session = await self.get(session_id)
        if "budget" in body.model_fields_set and session.running_turn is not None:
            await self._sidecar.agree(session_id, Terms(budget=body.budget))
        return session

    async def kill(self, session_id: UUID) -> Killed:
        """Raises: SessionNotFound, SandboxNotFound, SidecarUnavailable."""
        await self.get(session_id)
        killed = await self._sidecar.kill(session_id)
        if not killed.killed:
            raise SandboxNotFound(
                "The session has no sandbox.",
                hint="There is nothing to kill; the next turn makes one.",
            )
        if killed.sandbox_id is not None:
            async with self._database.connection() as conn:
                await sandboxes.mark_gone(conn, session_id, killed.sandbox_id, "killed on request")
        return killed

    async def destroy(self, session_id: UUID) -> Destroyed:
        """Raises: SessionNotFound, SandboxNotFound, TurnRunning, SidecarUnavailable."""
        await self.get(session_id)
        boxes = (await self._sidecar.sandboxes()).sandboxes
        for box in boxes:
            if box.session_id == session_id and box.state != "gone":
                destroyed = await self._sidecar.destroy(box.provider, box.sandbox_id)
                async with self._database.connection() as conn:
                    await sandboxes.mark_destroyed(
                        conn, session_id, box.sandbox_id, destroyed.proof
                    )
                return destroyed
        raise SandboxNotFound(
            "The session has no sandbox.",
            hint="There is nothing to destroy; the next turn makes one.",
        )

    async def sandboxes(self) -> SandboxList:
        """The sandboxes that exist now, with the titles of their sessions.

        Raises: SidecarUnavailable.
        """
        listed = await self._sidecar.sandboxes(measure=True)
        boxes = listed.sandboxes
        async with self._database.connection() as conn:
            titles = await sessions.titles(conn, [box.session_id for box in boxes])
        titled = [box.model_copy(update={"title": titles.get(box.session_id, "")}) for box in boxes]
        return SandboxList(sandboxes=titled, asked=listed.asked)

    async def delete(self, session_id: UUID) -> SessionDeleted:
        """Remove the sandbox, then the objects, then the rows; may be repeated until it succeeds.

        Raises: SessionNotFound, Conflict, SidecarUnavailable, StoreUnavailable.
        """
        async with self._database.transaction() as conn:
            locked = await sessions.lock(conn, session_id)
            if locked is None:
                raise session_not_found(session_id)
            if locked.held:
                raise Conflict("A backup is copying this session.", hint="Try again in a moment.")
            await sessions.mark_deleting(conn, session_id)
            await turns.drop_queued(conn, session_id)
        if locked.running_turn is not None:
            await self._stop(session_id, locked.running_turn)
        released = await self._sidecar.release(session_id)
        objects = await self._stores.sessions.delete_tree(str(session_id))
        state_objects = await self._stores.state.delete_tree(str(session_id))
        async with self._database.transaction() as conn:
            if await sessions.lock(conn, session_id) is None:
                raise session_not_found(session_id)
            removed = await sessions.delete(conn, session_id)
            await notify.notify(conn, session_id)
        return SessionDeleted(
            session_id=session_id,
            sandboxes=released.sandboxes,
            objects=objects,
            state_objects=state_objects,
            turns=removed.turns,
            events=removed.events,
        )

    async def check_kept(self, session_id: UUID) -> None:
        """Raises: SessionNotFound, Conflict when the session is being deleted."""
        async with self._database.connection() as conn:
            deleting = await sessions.is_deleting(conn, session_id)
        if deleting is None:
            raise session_not_found(session_id)
        if deleting:
            raise Conflict("The session is being deleted.", hint="Delete it again to finish that.")

    async def _stop(self, session_id: UUID, turn_id: UUID) -> None:
        try:
            await self._turns.cancel(session_id, turn_id)
        except NoTurnRunning:
            return
        if await self._turns.wait_for_end(session_id, turn_id, CANCEL_WITHIN):
            return
        cut = TurnRunning("The session was deleted and the turn did not end by itself.")
        await self._carrier.abandon(session_id, turn_id, cut)
