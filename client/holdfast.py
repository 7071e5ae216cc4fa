"""The client itself."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from uuid import UUID

import httpx
from pydantic import SecretStr

from client import settings
from client.files import Files, Live
from client.follow import STREAM_TIMEOUT, Patience, follow, lines, placed
from client.matrix_runs import MatrixRuns
from client.permissions import Permissions
from client.receipts import Difference, check_manifest, differences
from client.sessions import Id, Sessions, Turns
from client.tokens import Tokens
from client.wire import TIMEOUT, Wire, build
from contracts import errors
from contracts.bodies import (
    Capabilities,
    Choices,
    Health,
    InvokeData,
    InvokeInputs,
    InvokeMessage,
    InvokeRequest,
    LeakList,
    Readiness,
    SandboxList,
    Turn,
)
from contracts.events import TURN_END_TYPES, Event
from contracts.tls import verification_for

NOT_READY = frozenset({503})


class Holdfast:
    """A stack, over HTTP. Enter it with `async with`; `http` is for tests and special transports,
    `name` (`[a-z0-9-]{1,32}`) is what this program is called where it is recorded who did it.

    Every method raises HoldfastError and nothing else from the wire: the error that the
    api told, or Unavailable when it does not answer.
    """

    def __init__(
        self,
        url: str,
        token: str | SecretStr,
        *,
        http: httpx.AsyncClient | None = None,
        patience: Patience | None = None,
        name: str | None = None,
    ) -> None:
        secret = SecretStr(token) if isinstance(token, str) else token
        self._own = http is None
        # Proxies of the environment are left out: the token is for the stack alone.
        self._http = http or httpx.AsyncClient(
            timeout=TIMEOUT, trust_env=False, verify=verification_for(url)
        )
        self._wire = Wire(self._http, url, secret, name)
        self._patience = patience or Patience()
        self.sessions = Sessions(self._wire)
        self.turns = Turns(self._wire, self._patience)
        self.permissions = Permissions(self._wire)
        self.files = Files(self._wire)
        self.live = Live(self._wire)
        self.matrix = MatrixRuns(self._wire)
        self.tokens = Tokens(self._wire)

    @classmethod
    def from_env(cls) -> Self:
        """The stack that HOLDFAST_URL and HOLDFAST_TOKEN name.

        Raises: InvalidInput when they are not set.
        """
        target = settings.from_env()
        return cls(target.url, target.token)

    @classmethod
    def discover(cls, start: Path | None = None) -> Self:
        """The stack of the environment, else of the project around `start` (the working directory).

        Raises: InvalidInput, Unavailable.
        """
        target = settings.discover(start)
        return cls(target.url, target.token)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._own:
            await self._http.aclose()

    def events(
        self, session_id: Id, *, after: int = 0, follow: bool = True
    ) -> AsyncGenerator[Event, None]:
        """The transcript after event `after`, once and in order, across broken connections.

        With `follow` it waits for new events for ever; without, it ends with the last stored one.
        Raises: StreamGap when an event is missing, Unavailable, SessionNotFound.
        """
        return self._events(session_id, after, follow)

    def _events(self, session_id: Id, after: int, live: bool) -> AsyncGenerator[Event, None]:
        return follow(self._wire, session_id, after=after, live=live, patience=self._patience)

    async def invoke(
        self,
        prompt: str | None = None,
        *,
        session_id: UUID | None = None,
        force: bool = False,
        **choices: Any,
    ) -> AsyncGenerator[Event, None]:
        """`POST /invoke`: sends, steers (`force`), cancels (no prompt) or attaches (both).

        After the first event it survives a broken connection as `events` does.
        Raises: TurnRunning, NoTurnRunning, SessionNotFound, StreamGap, Unavailable.
        """
        messages = [InvokeMessage(content=prompt)] if prompt is not None else []
        body = InvokeRequest(
            session_id=session_id,
            data=InvokeData(
                inputs=InvokeInputs(messages=messages), parameters=build(Choices, **choices)
            ),
            force=force,
        )
        last: Event | None = None
        try:
            async with self._wire.open(
                "POST", "/invoke", body=body, limits=STREAM_TIMEOUT
            ) as response:
                async for line in lines(response):
                    if line.strip():
                        last = placed(line)
                        yield last
        except errors.HoldfastError as error:
            if last is None or not error.retryable:
                raise
        if last is None or last.type in TURN_END_TYPES or last.session_id is None:
            return
        turn_id, after = last.turn_id, last.seq or 0
        async with aclosing(self._events(last.session_id, after, True)) as events:
            async for event in events:
                if event.turn_id == turn_id:
                    yield event
                    if event.type in TURN_END_TYPES:
                        return

    async def capabilities(self) -> Capabilities:
        """What this stack can run."""
        return await self._wire.call("GET", "/capabilities", Capabilities)

    async def sandboxes(self) -> SandboxList:
        """The sandboxes that exist now."""
        return await self._wire.call("GET", "/sandboxes", SandboxList)

    async def leaks(self) -> LeakList:
        """Sandboxes that live, or may live, and that nothing answers for; asked for now.

        Raises: Unavailable.
        """
        return await self._wire.call("GET", "/leaks", LeakList)

    async def verify(self, turn: Turn) -> AsyncGenerator[Difference, None]:
        """Reads what the turn's receipt stands for from the store; yields what differs.

        Files that a later turn changed differ too: the store has the newest.
        Raises: NotFound when the turn has no manifest, Unavailable.
        """
        stored = await self.turns.manifest(turn.session_id, turn.id)
        for difference in check_manifest(stored, turn):
            yield difference
        async with aclosing(differences(self.files, stored.manifest)) as found:
            async for difference in found:
                yield difference

    async def health(self) -> Health:
        """Whether the api answers; needs no token."""
        return await self._wire.call("GET", "/healthz", Health)

    async def ready(self) -> Readiness:
        """Whether every part that the api needs answers it; `ready` may be false."""
        return await self._wire.call("GET", "/readyz", Readiness, accept=NOT_READY)
