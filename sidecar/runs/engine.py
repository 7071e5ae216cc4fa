"""All runs of this sidecar: a run is the sidecar's, not the connection's that asked for it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from uuid import UUID

from contracts import events
from contracts.bodies import RunBody, RunRequest
from contracts.errors import InvalidInput, RunNotFound, TurnRunning
from sidecar.harnesses import registry as harnesses
from sidecar.providers import registry as providers
from sidecar.runs.journal import Journal
from sidecar.runs.sandboxes import Sandboxes
from sidecar.runs.turn import Turn

log = logging.getLogger(__name__)

KEEP_SECONDS = 24 * 3600


class Runs:
    """Starts turns, one at a time per session, and lets them be followed and cancelled."""

    def __init__(
        self,
        data_dir: Path,
        sandboxes: Sandboxes,
        default_models: Mapping[str, str | None],
        group: asyncio.TaskGroup,
    ) -> None:
        self._dir = data_dir / "runs"
        self.sandboxes = sandboxes
        self._default_models = default_models
        self._group = group
        self._journals: dict[UUID, Journal] = {}
        self._turns: dict[UUID, Turn] = {}

    @classmethod
    @contextlib.asynccontextmanager
    async def open(
        cls, data_dir: Path, sandboxes: Sandboxes, default_models: Mapping[str, str | None]
    ) -> AsyncIterator[Runs]:
        async with asyncio.TaskGroup() as group:
            runs = cls(data_dir, sandboxes, default_models, group)
            await runs._recover()
            reaper = group.create_task(sandboxes.reap())
            try:
                yield runs
            finally:
                reaper.cancel()
                for turn in runs._turns.values():
                    turn.cancelled.set()

    async def _recover(self) -> None:
        """Runs that a sidecar before us left without an end get one; old ones are removed."""
        self._dir.mkdir(parents=True, exist_ok=True)
        for path in self._dir.glob("*.ndjson"):
            if time.time() - path.stat().st_mtime > KEEP_SECONDS:
                path.unlink()
                continue
            journal = Journal.load(path)
            if not journal.ended:
                info = events.ErrorInfo(
                    code="sidecar_restarted",
                    message="the sidecar was restarted in the middle of the turn",
                    hint="What the turn had done is kept: send the next prompt.",
                    retryable=True,
                )
                await journal.append(events.TurnInterrupted(error=info))
            self._journals[journal.request.turn_id] = journal

    async def start(self, request: RunRequest) -> RunBody:
        """Idempotent by turn id. Raises: UnknownHarness, UnknownProvider, InvalidInput,
        TurnRunning, when another turn of the session still runs."""
        if request.turn_id in self._journals:
            return self.get(request.turn_id)
        harness = harnesses.get(request.harness)
        providers.check(request.provider)
        if request.permissions == "ask":
            raise InvalidInput("permission requests cannot be answered yet: use auto")
        for turn_id in self._turns:
            if self._journals[turn_id].request.session_id == request.session_id:
                raise TurnRunning("another turn of this session runs", turn_id=str(turn_id))
        journal = self._journals[request.turn_id] = Journal.create(self._dir, request)
        turn = Turn(journal, self.sandboxes, self._default_models.get(harness.family))
        self._turns[request.turn_id] = turn
        self._group.create_task(self._run(request.turn_id, turn))
        return self.get(request.turn_id)

    async def _run(self, turn_id: UUID, turn: Turn) -> None:
        try:
            await turn.run()
        finally:
            self._turns.pop(turn_id, None)

    def get(self, turn_id: UUID) -> RunBody:
        """Raises: RunNotFound."""
        journal = self._journal(turn_id)
        return RunBody(
            turn_id=turn_id,
            session_id=journal.request.session_id,
            state="ended" if journal.ended else "running",
            last_n=journal.last_n,
        )

    def follow(self, turn_id: UUID, after: int) -> AsyncIterator[bytes]:
        """Raises: RunNotFound."""
        return self._journal(turn_id).follow(after)

    def cancel(self, turn_id: UUID) -> RunBody:
        """Idempotent; the end comes through the stream. Raises: RunNotFound."""
        turn = self._turns.get(turn_id)
        if turn is not None:
            turn.cancelled.set()
        return self.get(turn_id)

    async def forget_session(self, session_id: UUID) -> None:
        """Remove the journals of a session that is being deleted."""
        for turn_id, journal in list(self._journals.items()):
            if journal.request.session_id == session_id and turn_id not in self._turns:
                journal.path.unlink(missing_ok=True)
                del self._journals[turn_id]

    def _journal(self, turn_id: UUID) -> Journal:
        journal = self._journals.get(turn_id)
        if journal is None:
            raise RunNotFound(f"there is no run {turn_id}")
        return journal
