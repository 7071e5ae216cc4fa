"""Sessions and turns."""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any, Literal
from uuid import UUID

from pydantic import ValidationError

from client.follow import Patience, follow
from client.receipts import StoredManifest
from client.wire import SLOW_TIMEOUT, Wire, build, segment
from contracts import errors
from contracts.bodies import (
    MAX_PROMPT_CHARS,
    Budget,
    Changes,
    Destroyed,
    Durability,
    Killed,
    Manifest,
    Permissions,
    Session,
    SessionContents,
    SessionCreate,
    SessionDeleted,
    SessionPage,
    SessionPatch,
    SessionState,
    Turn,
    TurnCreate,
    TurnPage,
)
from contracts.egress import Egress
from contracts.events import TURN_END_TYPES, Event

Id = UUID | str

PAGE = 100
# How often a turn that waits is asked for.
QUEUE_LOOK_SECONDS = 0.25
# How many candidates an ambiguous prefix names.
SHOWN_CANDIDATES = 5


def session_path(session_id: Id) -> str:
    return f"/sessions/{segment(str(session_id))}"


class Sessions:
    """`hf.sessions`."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire

    async def create(
        self,
        *,
        title: str = "",
        harness: str | None = None,
        provider: str | None = None,
        model: str | None = None,
        reasoning: str | None = None,
        permissions: Permissions | None = None,
        durability: Durability | None = None,
        egress: Egress | None = None,
        egress_hosts: Sequence[str] | None = None,
        budget: Budget | None = None,
    ) -> Session:
        """A new session; what is left out is the stack's default.

        Raises: UnknownHarness, UnknownProvider, InvalidInput.
        """
        body = build(
            SessionCreate,
            title=title,
            harness=harness,
            provider=provider,
            model=model,
            reasoning=reasoning,
            permissions=permissions,
            durability=durability,
            egress=egress,
            egress_hosts=None if egress_hosts is None else list(egress_hosts),
            budget=budget,
        )
        return await self._wire.call("POST", "/sessions", Session, body=body)

    async def list(
        self,
        *,
        archived: bool | Literal["any"] = False,
        state: SessionState | None = None,
        harness: str | None = None,
        provider: str | None = None,
        q: str | None = None,
    ) -> AsyncGenerator[Session, None]:
        """Every session that is, or is not, archived, the last used first; all pages of them.

        `q` are words, each of which is in the title or in the text of the transcript.
        """
        cursor: str | None = None
        wanted = {"state": state, "harness": harness, "provider": provider, "q": q}
        while True:
            page = await self._wire.call(
                "GET",
                "/sessions",
                SessionPage,
                params={"limit": PAGE, "cursor": cursor, "archived": archived, **wanted},
            )
            for session in page.sessions:
                yield session
            cursor = next_cursor(cursor, page.next_cursor)
            if cursor is None:
                return

    async def get(self, session_id: Id) -> Session:
        """Raises: SessionNotFound."""
        return await self._wire.call("GET", session_path(session_id), Session)

    async def contents(self, session_id: Id) -> SessionContents:
        """What `delete` would remove.

        Raises: SessionNotFound, Unavailable.
        """
        path = f"{session_path(session_id)}/contents"
        return await self._wire.call("GET", path, SessionContents, limits=SLOW_TIMEOUT)

    async def rename(self, session_id: Id, title: str) -> Session:
        """Raises: SessionNotFound, InvalidInput."""
        return await self._patch(session_id, title=title)

    async def archive(self, session_id: Id, archived: bool = True) -> Session:
        """Raises: SessionNotFound."""
        return await self._patch(session_id, archived=archived)

    async def set_egress(
        self, session_id: Id, egress: Egress, hosts: Sequence[str] | None = None
    ) -> Session:
        """What the session may reach, from its next turn on; without `hosts` those stay.

        Raises: SessionNotFound, InvalidInput, UnsupportedChoice.
        """
        given = None if hosts is None else list(hosts)
        return await self._patch(session_id, egress=egress, egress_hosts=given)

    async def set_budget(self, session_id: Id, budget: Budget | None) -> Session:
        """What the session may use in all, also of a turn that runs; None: as much as it likes.

        Raises: SessionNotFound, Unavailable.
        """
        return await self._patch(session_id, budget=budget)

    async def delete(self, session_id: Id) -> SessionDeleted:
        """Removes the session's sandbox, objects and rows, and says how many of each.

        Raises: SessionNotFound, Unavailable.
        """
        return await self._wire.call(
            "DELETE", session_path(session_id), SessionDeleted, limits=SLOW_TIMEOUT
        )

    async def kill(self, session_id: Id) -> Killed:
        """SIGKILL to the session's sandbox; its files and its transcript stay.

        Raises: SessionNotFound, Unavailable.
        """
        return await self._wire.call(
            "POST", f"{session_path(session_id)}/kill", Killed, limits=SLOW_TIMEOUT
        )

    async def destroy(self, session_id: Id) -> Destroyed:
        """Ends the session's sandbox in an orderly way, with proof; not while a turn uses it.

        Raises: SessionNotFound, SandboxNotFound, TurnRunning, Unavailable.
        """
        return await self._wire.call(
            "POST", f"{session_path(session_id)}/destroy", Destroyed, limits=SLOW_TIMEOUT
        )

    async def resolve(self, ref: str) -> Session:
        """The session that `ref` names: an id, a prefix that only one id has, or `last`.

        Raises: SessionNotFound, InvalidInput when several match.
        """
        if ref == "last":
            return await self._last()
        try:
            return await self.get(UUID(ref))
        except ValueError:
            pass
        wanted = ref.lower().replace("-", "")
        if not re.fullmatch(r"[0-9a-f]{1,32}", wanted):
            raise errors.SessionNotFound(
                f"{ref!r} is not a session id", hint="an id, a prefix of one, or `last`"
            )
        # By id: one that is used while we page may be listed twice.
        found = {
            session.id: session
            for archived in (False, True)
            async for session in self.list(archived=archived)
            if session.id.hex.startswith(wanted)
        }
        if len(found) == 1:
            return found.popitem()[1]
        if not found:
            raise errors.SessionNotFound(f"no session starts with {ref!r}", hint="holdfast ls")
        shown = ", ".join(str(each) for each in [*found][:SHOWN_CANDIDATES])
        raise errors.InvalidInput(
            f"{len(found)} sessions start with {ref!r}", hint=f"give more of it: {shown}"
        )

    async def _last(self) -> Session:
        async with aclosing(self.list(archived=False)) as sessions:
            async for session in sessions:
                return session
        raise errors.SessionNotFound("there is no session yet", hint="holdfast new")

    async def _patch(self, session_id: Id, **changes: Any) -> Session:
        body = build(SessionPatch, **changes)
        return await self._wire.call("PATCH", session_path(session_id), Session, body=body)


class Turns:
    """`hf.turns`."""

    def __init__(self, wire: Wire, patience: Patience) -> None:
        self._wire = wire
        self._patience = patience

    async def start(
        self,
        session_id: Id,
        prompt: str,
        *,
        harness: str | None = None,
        provider: str | None = None,
        model: str | None = None,
        reasoning: str | None = None,
        permissions: Permissions | None = None,
        durability: Durability | None = None,
        queue: bool = False,
    ) -> Turn:
        """Starts a turn and returns at once. It goes on whether anyone follows it or not.

        While another one runs it is refused, or with `queue` waits for its end.
        Never sent twice: after an Unavailable, look at the session before trying again.
        Raises: SessionNotFound, TurnRunning, UnknownHarness, UnknownProvider, TooLarge.
        """
        # Here as well as in the api, which may hang up before it has read all of it.
        if len(prompt) > MAX_PROMPT_CHARS:
            raise errors.TooLarge(f"a prompt has at most {MAX_PROMPT_CHARS} characters")
        body = build(
            TurnCreate,
            prompt=prompt,
            queue=queue,
            harness=harness,
            provider=provider,
            model=model,
            reasoning=reasoning,
            permissions=permissions,
            durability=durability,
        )
        return await self._wire.call("POST", f"{session_path(session_id)}/turns", Turn, body=body)

    async def get(self, session_id: Id, turn_id: Id) -> Turn:
        """Raises: SessionNotFound, TurnNotFound."""
        return await self._wire.call("GET", self._path(session_id, turn_id), Turn)

    async def list(self, session_id: Id) -> AsyncGenerator[Turn, None]:
        """The turns in the order of the conversation, all pages of them.

        Raises: SessionNotFound.
        """
        path, cursor = f"{session_path(session_id)}/turns", None
        while True:
            page = await self._wire.call(
                "GET", path, TurnPage, params={"limit": PAGE, "cursor": cursor}
            )
            for turn in page.turns:
                yield turn
            cursor = next_cursor(cursor, page.next_cursor)
            if cursor is None:
                return

    async def cancel(self, session_id: Id, turn_id: Id) -> Turn:
        """Asks for the end of a turn; the end itself is an event.

        Raises: TurnNotFound, NoTurnRunning.
        """
        path = f"{self._path(session_id, turn_id)}/cancel"
        return await self._wire.call("POST", path, Turn)

    async def manifest(self, session_id: Id, turn_id: Id) -> StoredManifest:
        """All that the turn's receipt stands for.

        Raises: SessionNotFound, TurnNotFound, NotFound when the turn has none.
        """
        path = f"{self._path(session_id, turn_id)}/manifest"
        async with self._wire.open("GET", path) as response:
            content = await response.aread()
        try:
            manifest = Manifest.model_validate_json(content)
        except ValidationError as error:
            raise errors.HoldfastError(f"{path} is no manifest that we know") from error
        return StoredManifest(manifest, hashlib.sha256(content).hexdigest())

    async def changes(self, session_id: Id, turn_id: Id) -> Changes:
        """The files that the turn added, changed and removed.

        Raises: SessionNotFound, TurnNotFound, NotFound when it has no manifest.
        """
        return await self._wire.call("GET", f"{self._path(session_id, turn_id)}/changes", Changes)

    async def started(self, turn: Turn) -> Turn:
        """The turn once it does not wait any more: it runs, has ended, or was cancelled.

        Raises: Unavailable when the api stays away, SessionNotFound, TurnNotFound.
        """
        failures = 0
        while turn.state == "queued":
            await asyncio.sleep(QUEUE_LOOK_SECONDS)
            try:
                turn = await self.get(turn.session_id, turn.id)
                failures = 0
            except errors.Unavailable:
                failures += 1
                if failures > self._patience.tries:
                    raise
                await asyncio.sleep(self._patience.pause(failures))
        return turn

    async def follow(self, turn: Turn) -> AsyncGenerator[Event, None]:
        """The turn's events from its first to its end; one that waits is waited for.

        There are none of a turn that was cancelled while it waited.
        Raises: StreamGap, Unavailable, SessionNotFound.
        """
        turn = await self.started(turn)
        if never_ran(turn):
            return
        after = max(0, turn.first_seq - 1)
        async with aclosing(
            follow(self._wire, turn.session_id, after=after, live=True, patience=self._patience)
        ) as events:
            async for event in events:
                if event.turn_id != turn.id:
                    continue
                yield event
                if event.type in TURN_END_TYPES:
                    return

    async def run(
        self,
        session_id: Id,
        prompt: str,
        *,
        harness: str | None = None,
        provider: str | None = None,
        model: str | None = None,
        reasoning: str | None = None,
        permissions: Permissions | None = None,
        durability: Durability | None = None,
        queue: bool = False,
    ) -> AsyncGenerator[Event, None]:
        """Starts a turn and follows it to its end; leaving early does not stop the turn.

        Raises: what `start` and `follow` raise.
        """
        turn = await self.start(
            session_id,
            prompt,
            harness=harness,
            provider=provider,
            model=model,
            reasoning=reasoning,
            permissions=permissions,
            durability=durability,
            queue=queue,
        )
        async with aclosing(self.follow(turn)) as events:
            async for event in events:
                yield event

    def _path(self, session_id: Id, turn_id: Id) -> str:
        return f"{session_path(session_id)}/turns/{segment(str(turn_id))}"


def never_ran(turn: Turn) -> bool:
    """Whether a turn ended while it waited: it has no events."""
    return turn.ended_at is not None and turn.last_seq < turn.first_seq


def next_cursor(asked: str | None, answered: str | None) -> str | None:
    """The cursor of the next page.

    Raises: HoldfastError when the api sends us round in a circle.
    """
    if answered is not None and answered == asked:
        raise errors.HoldfastError("the api answered a page with its own cursor")
    return answered
