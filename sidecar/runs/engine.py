"""All runs of this sidecar: a run is the sidecar's, not the connection's that asked for it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from uuid import UUID

from contracts import events
from contracts.bodies import PermissionAnswer, RunBody, RunRequest
from contracts.errors import RunNotFound, StaleEpoch, UnsupportedChoice
from contracts.logs import working_on
from contracts.redaction import Redactor
from contracts.session_tokens import session_token
from sidecar.harnesses import registry as harnesses
from sidecar.providers import registry as providers
from sidecar.record_files import set_aside, sweep_records
from sidecar.runs import progress
from sidecar.runs.bounds import Bounds
from sidecar.runs.journal import Journal
from sidecar.runs.quota import Quota
from sidecar.runs.sandboxes import Sandboxes
from sidecar.runs.states import States
from sidecar.runs.turn import Turn

log = logging.getLogger(__name__)

KEEP_SECONDS = 24 * 3600
FORGET_SECONDS = 600


@dataclass(frozen=True)
class Rules:
    """What holds for every turn. `redactor` knows the secrets that no event may show, and with the
    `gateway_secret` the token by which a session's sandbox in a cloud reaches its model."""

    bounds: Bounds = field(default_factory=Bounds)
    quota: Quota = field(default_factory=Quota)
    redactor: Redactor = field(default_factory=Redactor)
    gateway_secret: bytes = b""


class Runs:
    """Starts turns, one at a time per session, and lets them be followed and cancelled."""

    def __init__(
        self,
        data_dir: Path,
        sandboxes: Sandboxes,
        states: States,
        default_models: Mapping[str, str | None],
        group: asyncio.TaskGroup,
        rules: Rules,
    ) -> None:
        self._dir = data_dir / "runs"
        self.sandboxes = sandboxes
        self._states = states
        self._default_models = default_models
        self._group = group
        self._rules = rules
        self._journals: dict[UUID, Journal] = {}
        self._turns: dict[UUID, Turn] = {}
        self._tasks: dict[UUID, asyncio.Task[None]] = {}

    @classmethod
    @contextlib.asynccontextmanager
    async def open(
        cls,
        data_dir: Path,
        sandboxes: Sandboxes,
        states: States,
        default_models: Mapping[str, str | None],
        rules: Rules | None = None,
    ) -> AsyncIterator[Runs]:
        async with asyncio.TaskGroup() as group:
            runs = cls(data_dir, sandboxes, states, default_models, group, rules or Rules())
            runs._recover()
            own = [group.create_task(sandboxes.reap()), group.create_task(runs._forget_old())]
            try:
                yield runs
            finally:
                # Left as they are, harness and all: the next sidecar goes on with them.
                for task in [*own, *runs._tasks.values()]:
                    task.cancel()

    def _recover(self) -> None:
        """Go on with runs that a sidecar before us left without an end; remove old ones."""
        self._dir.mkdir(parents=True, exist_ok=True)
        sweep_records(self._dir)
        for path in self._dir.glob("*.ndjson"):
            with self._set_aside_if_broken(path):
                journal = Journal.load(path)
                harnesses.get(journal.request.harness)
                self._journals[journal.request.turn_id] = journal
        # when all are known: a turn must know what those before it told
        newest: dict[UUID, UUID] = {}
        # The oldest first: each has its session until it has ended.
        for journal in sorted(self._journals.values(), key=lambda each: each.request.epoch):
            turn_id, session_id = journal.request.turn_id, journal.request.session_id
            if not journal.ended:
                with self._set_aside_if_broken(journal.path):
                    self._begin(journal, adopted=True)
                if turn_id not in self._turns:
                    del self._journals[turn_id]
                    continue
            else:  # whoever wrote its end may have died before it could do this
                with contextlib.suppress(OSError):
                    progress.mark_ended(journal)
            replaced = newest.get(session_id)
            if replaced in self._turns:
                self._turns[replaced].cancel()
            newest[session_id] = turn_id
        self.forget_before(time.time() - KEEP_SECONDS)
        running = {journal.request.session_id for journal in map(self._journal, self._turns)}
        self.sandboxes.let_go(except_for=running)

    @contextlib.contextmanager
    def _set_aside_if_broken(self, path: Path) -> Iterator[None]:
        """A run of another release, or cut off before its first line, is renamed to `.broken`, and
        its turn is told as lost. It keeps no other run from being taken up."""
        try:
            yield
        except Exception as error:  # the boundary: whatever is in the file
            log.exception("cannot take up the run in %s", path)
            with contextlib.suppress(OSError):
                set_aside(path, f"{type(error).__name__}: {error}")

    async def start(self, request: RunRequest) -> RunBody:
        """Idempotent by turn id. A turn that still runs although its session was granted anew is
        told to stop; the new one waits for its end.

        Raises: UnknownHarness, UnknownProvider, InvalidInput; StaleEpoch, when the session was
        granted to a later turn.
        """
        if request.turn_id in self._journals:
            return self.get(request.turn_id)
        harness = harnesses.get(request.harness)
        providers.check(request.provider)
        if request.permissions == "ask" and not harness.can_ask:
            raise UnsupportedChoice(f"{harness.title} cannot ask for permission: use auto")
        for turn_id, journal in self._journals.items():
            if journal.request.session_id != request.session_id:
                continue
            if journal.request.epoch >= request.epoch:
                raise StaleEpoch("the session was granted to a later turn", turn_id=str(turn_id))
            if turn_id in self._turns:
                self._turns[turn_id].cancel()
        journal = self._journals[request.turn_id] = Journal.create(self._dir, request)
        try:
            self._begin(journal)
        except BaseException:  # a run that nobody carries would be running for ever
            self._forget(request.turn_id, journal)
            raise
        return self.get(request.turn_id)

    def _begin(self, journal: Journal, *, adopted: bool = False) -> None:
        turn_id = journal.request.turn_id
        model = self._default_models.get(harnesses.get(journal.request.harness).family)
        session_id = journal.request.session_id
        told = [
            j.last_record for j in self._journals.values() if j.request.session_id == session_id
        ]
        rules = self._rules
        rules.redactor.know(*self._tokens(session_id))
        journal.redactor = rules.redactor
        turn = Turn(
            journal,
            self.sandboxes,
            self._states,
            model,
            bounds=rules.bounds,
            quota=rules.quota,
            adopted=adopted,
            recorded_upto=max(told, default=0),
        )
        self._turns[turn_id] = turn
        self._tasks[turn_id] = self._group.create_task(self._run(turn_id, turn))

    async def _run(self, turn_id: UUID, turn: Turn) -> None:
        request = self._journal(turn_id).request
        with working_on(session_id=request.session_id, turn_id=turn_id):
            log.info("a turn of %s begins on %s", request.harness, request.provider)
            try:
                await turn.run()
                log.info("the turn has ended")
            except Exception as error:  # the boundary: a run that fails must not end the others
                log.exception("turn %s crashed before emitting a terminal event", turn_id)
                await self._journal(turn_id).append_end(_crashed(error))
            finally:
                self._ended(turn_id, request.session_id)

    def _ended(self, turn_id: UUID, session_id: UUID) -> None:
        self._turns.pop(turn_id, None)
        self._tasks.pop(turn_id, None)
        journal = self._journals.get(turn_id)
        if journal is not None and journal.ended:
            journal.close()
        if session_id not in {self._journal(other).request.session_id for other in self._turns}:
            # every line is held against all that is known: not more than what is in use
            self._rules.redactor.forget(*self._tokens(session_id))

    def _tokens(self, session_id: UUID) -> list[str]:
        """What the session's sandbox says to the gateway, where it is in a cloud."""
        secret = self._rules.gateway_secret
        return [session_token(secret, str(session_id))] if secret else []

    def running(self) -> list[RunBody]:
        """Every run that has not ended."""
        return [self.get(turn_id) for turn_id in self._turns]

    def get(self, turn_id: UUID) -> RunBody:
        """Raises: RunNotFound."""
        journal = self._journal(turn_id)
        return RunBody(
            turn_id=turn_id,
            session_id=journal.request.session_id,
            state="ended" if journal.ended else "running",
            last_n=journal.last_n,
        )

    async def follow(self, turn_id: UUID, after: int) -> AsyncIterator[bytes]:
        """The lines of a run behind number `after`, which is the last that the reader has stored.

        Raises: RunNotFound, StreamGap.
        """
        journal = self._journal(turn_id)
        await journal.meet_reader(after)
        return journal.follow(after)

    async def release_followers(self) -> None:
        """End every stream: this process stops, and the next one serves the rest."""
        for journal in self._journals.values():
            await journal.release_followers()

    def cancel(self, turn_id: UUID) -> RunBody:
        """Idempotent; the end comes through the stream. Raises: RunNotFound."""
        turn = self._turns.get(turn_id)
        if turn is not None:
            turn.cancel()
        return self.get(turn_id)

    async def answer(self, turn_id: UUID, permission_id: str, answer: PermissionAnswer) -> RunBody:
        """Idempotent; that it was taken comes through the stream. Of a run that has ended nothing
        is asked any more.

        Raises: RunNotFound, NotAskedYet, InvalidInput.
        """
        turn = self._turns.get(turn_id)
        if turn is not None:
            await turn.permissions.answer(permission_id, answer)
        return self.get(turn_id)

    async def forget_session(self, session_id: UUID) -> None:
        """Remove the journals of a session that is being deleted."""
        for turn_id, journal in list(self._journals.items()):
            if journal.request.session_id == session_id and turn_id not in self._turns:
                self._forget(turn_id, journal)

    async def _forget_old(self) -> None:
        """For ever: remove the journals that nobody will ask for any more."""
        while True:
            await asyncio.sleep(FORGET_SECONDS)
            try:
                self.forget_before(time.time() - KEEP_SECONDS)
            except OSError:  # the boundary: what cannot be removed must not end the service
                log.exception("cannot remove old runs")

    def forget_before(self, when: float) -> None:
        """Remove the journals of runs that ended before then, and what is left of others."""
        sweep_records(self._dir)
        progress.remove_orphans(self._dir)
        for turn_id, journal in list(self._journals.items()):
            if turn_id in self._turns or not journal.ended:
                continue
            try:
                old = journal.path.stat().st_mtime < when
            except FileNotFoundError:
                old = True
            if old:
                self._forget(turn_id, journal)

    def _forget(self, turn_id: UUID, journal: Journal) -> None:
        journal.path.unlink(missing_ok=True)
        progress.remove_record(journal)
        del self._journals[turn_id]

    def _journal(self, turn_id: UUID) -> Journal:
        journal = self._journals.get(turn_id)
        if journal is None:
            raise RunNotFound(f"there is no run {turn_id}")
        return journal


def _crashed(error: Exception) -> events.EventBase:
    message = f"the sidecar failed in the middle of the turn: {type(error).__name__}: {error}"
    return events.TurnInterrupted(error=events.ErrorInfo(code="internal", message=message))
