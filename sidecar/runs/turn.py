"""The steps of one turn. Whatever goes wrong becomes its last event; nothing is raised."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from dataclasses import replace
from typing import Any, NoReturn

from contracts import events
from contracts.errors import (
    HarnessExited,
    HoldfastError,
    NotDurable,
    SandboxGone,
    StreamGap,
    Unreachable,
)
from sidecar.boxhost.contract import MountSick
from sidecar.harnesses import agent_server
from sidecar.harnesses import registry as harnesses
from sidecar.harnesses.base import Choice
from sidecar.runs import egress, mount_watch, progress
from sidecar.runs.bounds import Bounds, Flow
from sidecar.runs.conversation import Conversation
from sidecar.runs.handoff import briefing
from sidecar.runs.journal import Journal
from sidecar.runs.ladder import Brought
from sidecar.runs.live import Live
from sidecar.runs.permissions import Permissions
from sidecar.runs.progress import Talk
from sidecar.runs.quota import Quota
from sidecar.runs.records import Recorded
from sidecar.runs.sandboxes import Sandboxes
from sidecar.runs.states import Native, States
from sidecar.tasks import background
from sidecar.workspace.barrier import Held, Proof, nobody
from sidecar.workspace.engine import DurableSandbox, Workspace

log = logging.getLogger(__name__)

# What died under the turn; the turn did nothing wrong.
INTERRUPTIONS = (HarnessExited, SandboxGone, StreamGap, Unreachable)
LOST_WITH_MOUNT = "the workspace's mount died: what it had not stored by then is lost"


class Turn:
    """One turn from its request to its last event. `adopted`: a sidecar before us had begun it.
    `recorded_upto`: the gateway's last record that an earlier turn of the session has told."""

    def __init__(
        self,
        journal: Journal,
        sandboxes: Sandboxes,
        states: States,
        default_model: str | None,
        *,
        bounds: Bounds | None = None,
        quota: Quota | None = None,
        adopted: bool = False,
        recorded_upto: int = 0,
    ) -> None:
        self._journal = journal
        self._request = journal.request
        self._sandboxes = sandboxes
        self._states = states
        self._harness = harnesses.get(self._request.harness)
        self._choice = Choice(
            self._request.model or default_model,
            self._request.reasoning,
            self._request.permissions,
        )
        self._flow = Flow(journal, bounds)
        self._quota = quota or Quota()
        self.permissions = Permissions(journal, self._flow)
        self._recorded = Recorded(sandboxes.gateway, journal, recorded_upto, begun=adopted)
        self._adopted = adopted
        self._progress = progress.load(journal)
        self._lost_lines = self._progress.lines - journal.last_n if adopted else 0
        self._sandbox: DurableSandbox | None = None
        self._live: Live | None = None
        self._acp_session: str | None = None
        self._prompting = False
        self.cancelled = asyncio.Event()
        if self._progress.cancelled:
            self.cancelled.set()

    def cancel(self) -> None:
        """Ask the turn to end. Kept on disk: whoever goes on with the turn ends it too."""
        if self.cancelled.is_set():
            return
        self.cancelled.set()
        try:
            self._save(cancelled=True)
        except OSError as error:  # the api asks again when it loses the stream
            log.warning("cannot note that turn %s is cancelled: %s", self._request.turn_id, error)

    async def run(self) -> None:
        if self._progress.phase == "ended":
            await self._end_again()
            return
        async with self._sandboxes.lock(self._request.session_id):
            end = await self._guarded(self._work())
            end = await self._guarded(self._judge(end))
            end = await self._guarded(self._settle(end))
            if self._live is not None:
                if self._sandbox is not None and self._sandbox.remounted:
                    self._live = self._live.without_processes()
                await self._guarded(self._sandboxes.keep_warm(self._live, self._journal.append))
            await self._guarded(self._recorded.take_rest(pages=1))
            await self._journal.append_end(end)
            await self._guarded(self._forget())

    async def _end_again(self) -> None:
        """The journal lost the end of a turn that is over. Nothing is done again: the work would be
        done twice, and another manifest take the place of the one that the receipt is of."""
        lost = StreamGap(
            "the turn had ended, and its journal lost how",
            hint="What the turn had done is in the workspace. Start another turn.",
        )
        info = events.ErrorInfo.model_validate(lost.body())
        await self._journal.append_end(events.TurnInterrupted(error=info))

    async def _judge(self, end: events.EventBase) -> events.EventBase:
        await self._recorded.take_rest(cut_off=not isinstance(end, events.TurnCompleted))
        return self._recorded.judged(end)

    async def _forget(self) -> None:
        """The end is written: what was kept for whoever goes on with the turn is not needed."""
        progress.mark_ended(self._journal)
        await self._recorded.forget()

    async def _guarded(self, step: Coroutine[Any, Any, Any]) -> events.EventBase:
        """Run a step; its failure is an event."""
        try:
            end = await step
        except HoldfastError as error:
            info = events.ErrorInfo.model_validate(error.body())
            if isinstance(error, INTERRUPTIONS):
                return events.TurnInterrupted(error=info)
            return events.TurnFailed(error=info)
        except Exception as error:
            # The boundary of a run: it must end with an event, whatever happened.
            log.exception("turn %s failed unexpectedly", self._request.turn_id)
            message = f"unexpected: {type(error).__name__}: {error}"
            return events.TurnFailed(error=events.ErrorInfo(code="internal", message=message))
        return end if isinstance(end, events.EventBase) else events.TurnCompleted()

    async def _work(self) -> events.EventBase:
        """Everything up to the answer to the prompt."""
        if self._lost_lines > 0:
            # Of a turn that settles nothing is heard again: what was said at its end is lost.
            reason = "the journal ends before the record of how far the turn had come"
            await self._journal.append(events.RunGap(lines=self._lost_lines, reason=reason))
        if self._adopted:
            reason = "the sidecar was restarted in the middle of the turn"
            await self._journal.append(events.RunAdopted(reason=reason))
        if self._progress.phase == "unknown":
            await self._stop_unknown()
        if self._progress.talk is not None:
            self._acp_session = self._progress.talk.session
        if self._progress.end is not None:
            await self._guarded(self._rejoin_sandbox())
            return events.from_dict(self._progress.end)
        if self._progress.talk is not None:
            sandbox = await self._rejoin_sandbox()
            return await self._hear_out(sandbox, self._progress.talk)
        await self._recorded.begin()
        # Not interrupted by a cancel: a sandbox is never left half-made.
        self._sandbox, self._live = await self._sandboxes.acquire(
            self._request, self._journal.append
        )
        self._save(sandbox_id=self._sandbox.id)
        async with background() as tasks:
            talk = tasks.start(self._talk(self._sandbox, self._live))
            cancel = tasks.start(self.cancelled.wait())
            await asyncio.wait({talk, cancel}, return_when=asyncio.FIRST_COMPLETED)
            if not talk.done() and not self._prompting:
                return events.TurnCancelled(reason="cancelled before the prompt was sent")
            end: events.EventBase = await talk
            return end

    async def _stop_unknown(self) -> NoReturn:
        """Nobody knows whether the prompt was sent, and to send it twice would do its work twice.

        Raises: HarnessExited, with nothing left in the sandbox that could still write.
        """
        live = self._sandboxes.live.get(self._request.session_id)
        if live is not None:
            self._save(sandbox_id=live.sandbox_id)
            sandbox = await self._rejoin_sandbox()
            await sandbox.kill(
                [p for p in await sandbox.processes() if not agent_server.is_server(p)]
            )
        raise HarnessExited(
            "the sidecar was restarted, and its record of how far the turn had come cannot be read",
            hint="What the turn had done is in the workspace. Start another turn.",
        )

    async def _rejoin_sandbox(self) -> DurableSandbox:
        """Raises: SandboxGone."""
        self._sandbox, self._live = await self._sandboxes.rejoin(
            self._request, self._progress.sandbox_id, self._journal.append
        )
        return self._sandbox

    async def _talk(self, sandbox: DurableSandbox, live: Live) -> events.EventBase:
        live = await egress.settled(sandbox, live, self._request)
        # Forgotten while it is used: a turn that dies half-way must not hand on a broken process.
        self._live = live.with_adapter(self._harness.name, None)
        self._sandboxes.live.put(self._live)
        conversation = self._conversation(sandbox)
        async with (
            conversation.open(live, self._states) as brought,
            self._watched(sandbox, conversation),
        ):
            self._progress = replace(self._progress, known_epoch=brought.known_epoch)
            prompt = await self._brief(brought)
            self._prompting = True
            self._acp_session = conversation.session
            stop_reason = await conversation.prompt(prompt, self.cancelled, self._sending)
            self._keep(conversation)
        return self._answered(stop_reason)

    async def _hear_out(self, sandbox: DurableSandbox, talk: Talk) -> events.EventBase:
        """Go on with a turn whose prompt an earlier sidecar has sent."""
        self._prompting = True
        conversation = self._conversation(sandbox)
        async with conversation.rejoin(talk) as answer, self._watched(sandbox, conversation):
            certain = self._journal.last_source > talk.last_event_id
            stop_reason = await conversation.hear_out(answer, self.cancelled, certain=certain)
            self._keep(conversation)
        return self._answered(stop_reason)

    def _conversation(self, sandbox: DurableSandbox) -> Conversation:
        return Conversation(
            sandbox, self._harness, self._choice, self._journal, self.permissions, self._flow
        )

    @contextlib.asynccontextmanager
    async def _watched(
        self, sandbox: DurableSandbox, conversation: Conversation
    ) -> AsyncIterator[None]:
        """The workspace and the gateway's records are watched over for the time of the block. A
        watcher that fails ends the turn at once: nobody would notice what it was there for."""
        assert self._live is not None
        live, sandboxes = self._live, self._sandboxes

        # Functions: a turn that fails at once ends the watchers before they have begun.
        async def run(what: str, work: Callable[[], Awaitable[None]]) -> None:
            try:
                await work()
            except Exception as error:  # the boundary of a watcher: told, and by the turn
                log.exception("turn %s: %s failed", self._request.turn_id, what)
                if not isinstance(error, HoldfastError):
                    error = HoldfastError(f"{what} failed: {type(error).__name__}: {error}")
                conversation.fail(error)

        def watch() -> Awaitable[None]:
            return mount_watch.watch(sandboxes, live, sandbox, self._journal.append)

        def keep_copying() -> Awaitable[None]:
            return mount_watch.keep_copying(sandboxes, live, sandbox)

        def keep_alive() -> Awaitable[None]:
            return mount_watch.keep_alive(live, sandbox)

        async with background() as tasks:
            tasks.start(run("watching the workspace", watch))
            tasks.start(run("copying the workspace", keep_copying))
            tasks.start(run("keeping the sandbox alive", keep_alive))
            tasks.start(run("taking the gateway's records", self._recorded.follow))
            yield

    async def _brief(self, brought: Brought) -> str:
        """The prompt, behind what the harness does not know yet; says by which rung it came."""
        request = self._request
        past = briefing(request.past, request.turns_before, known_epoch=brought.known_epoch)
        native = brought.rung in ("warm", "native", "repaired")
        carried = [f"its own memory up to turn {brought.known_epoch}"] if native else []
        if past is not None:
            carried.append(past.carried)
        dropped = [*([] if native else brought.notes), *([past.dropped] if past else [])]
        await self._journal.append(
            events.Resume(
                rung="handoff" if past is not None and not native else brought.rung,
                carried="; ".join([*carried, *(brought.notes if native else [])]),
                dropped="; ".join(text for text in dropped if text),
                steps=brought.steps,
            )
        )
        return request.prompt if past is None else past.before(request.prompt)

    def _sending(self, talk: Talk) -> None:
        self._save(phase="prompting", talk=talk)

    def _keep(self, conversation: Conversation) -> None:
        assert self._live is not None
        self._live = self._live.with_adapter(self._harness.name, conversation.adapter())

    def _answered(self, stop_reason: str) -> events.EventBase:
        if self.cancelled.is_set():
            return events.TurnCancelled(reason="cancelled by request")
        return events.TurnCompleted(stop_reason=stop_reason)

    async def _settle(self, end: events.EventBase) -> events.EventBase:
        """The barrier, also after a failure: what was done is proven or said not to be."""
        if self._journal.has("receipt"):
            # All that was missing when the sidecar died: the end itself, and what HOME has now.
            if self._journal.has("state.captured") and self._live and self._acp_session:
                native = Native(self._acp_session, self._epoch_known_after(end))
                self._live = self._live.with_native(self._harness.name, native)
            return end
        try:
            self._save(phase="settling", end=events.to_dict(end))
        except OSError as error:  # whoever goes on with the turn hears its answer once more
            log.warning("cannot note that turn %s settles: %s", self._request.turn_id, error)
        try:
            workspace = await self._workspace()
            if workspace is None:
                return end
            async with self._sandbox.frozen() if self._sandbox else contextlib.nullcontext():
                await self._capture(end)
                proof = await self._prove(workspace)
        except HoldfastError as error:
            await self._journal.append(
                events.ReceiptFailed(
                    engine=self._sandboxes.engine(self._request.provider).name,
                    reason=error.message,
                    files=error.details.get("files", {}),
                    codes=error.details.get("codes", {}),
                )
            )
            if not isinstance(end, events.TurnCompleted):
                return end
            not_durable = error if isinstance(error, NotDurable) else NotDurable(str(error))
            return events.TurnFailed(error=events.ErrorInfo.model_validate(not_durable.body()))
        if proof.ghosts:
            reason = "they were deleted in the sandbox and still in the store; a copy is kept"
            swept = events.WorkspaceSwept(paths=list(proof.ghosts), reason=reason)
            await self._journal.append(swept)
        over = self._quota.over(proof.files, proof.bytes)
        if over is not None:
            await self._journal.append(over)
        await self._journal.append(
            events.Receipt(
                engine=proof.engine,
                files=proof.files,
                bytes=proof.bytes,
                manifest_sha256=proof.manifest_sha256,
                took=proof.took,
                window=self._sandboxes.sync_seconds(self._live) if self._live else None,
                lost=proof.lost or (LOST_WITH_MOUNT if self._journal.has("mount.lost") else ""),
            )
        )
        return end

    async def _prove(self, workspace: Workspace) -> Proof:
        """Raises: NotDurable, StaleEpoch, MountFailed, StoreUnavailable."""
        turn_id, epoch = str(self._request.turn_id), self._request.epoch
        held: Held = nobody if self._sandbox is None else self._sandbox.held
        try:
            return await workspace.barrier(turn_id, epoch, held)
        except MountSick as sick:
            if self._sandbox is None or self._live is None:
                raise
            if await self._sandboxes.is_gone(self._live):
                left = await self._sandboxes.workspace(self._request)
                return await left.barrier(turn_id, epoch)
            lost = f"{sick.kind}: {sick.message}"
            await self._sandboxes.remount(self._live, self._sandbox, lost, self._journal.append)
            return await self._sandbox.workspace.barrier(turn_id, epoch, held)

    async def _workspace(self) -> Workspace | None:
        """What the turn worked on; None if it never came so far.

        Raises: MountFailed, StoreUnavailable.
        """
        if self._sandbox is not None:
            return self._sandbox.workspace
        if self._progress.sandbox_id:
            return await self._sandboxes.workspace(self._request)
        return None

    async def _capture(self, end: events.EventBase) -> None:
        """Store the harness's own state, so that a new sandbox can load it."""
        if self._sandbox is None or self._live is None or self._acp_session is None:
            return
        native = Native(self._acp_session, self._epoch_known_after(end))
        started = time.monotonic()
        paths = self._harness.state
        try:
            await self._sandboxes.check_running(self._live)
            tar = await self._sandbox.pack(paths.kept, paths.left)
            self._live = self._live.with_native(self._harness.name, native)
            stored = await self._states.put(self._request, native, tar)
        except HoldfastError as error:
            failed = events.StateFailed(harness=self._harness.name, reason=error.message)
            await self._journal.append(failed)
            return
        await self._journal.append(
            events.StateCaptured(
                harness=self._harness.name,
                bytes=stored.bytes,
                took=time.monotonic() - started,
            )
        )

    def _epoch_known_after(self, end: events.EventBase) -> int:
        """The last turn that the harness need not be told of. One that was cut off counts as not
        known, and so does everything that its prompt told of the turns of others: the harness may
        not have kept it."""
        if isinstance(end, events.TurnCompleted | events.TurnCancelled):
            return self._request.epoch
        return self._progress.known_epoch

    def _save(self, **changes: Any) -> None:
        self._progress = replace(self._progress, **changes)
        progress.save(self._journal, self._progress)
