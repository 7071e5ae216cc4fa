"""The steps of one turn. Whatever goes wrong becomes its last event; nothing is raised."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

from contracts import events
from contracts.errors import (
    HarnessExited,
    HoldfastError,
    NotDurable,
    SandboxGone,
    StreamGap,
    Unreachable,
)
from sidecar.harnesses import registry as harnesses
from sidecar.harnesses.base import Choice
from sidecar.runs.conversation import Conversation
from sidecar.runs.journal import Journal
from sidecar.runs.live import Live
from sidecar.runs.sandboxes import Sandboxes
from sidecar.tasks import background
from sidecar.workspace.engine import DurableSandbox

log = logging.getLogger(__name__)

# What died under the turn; the turn did nothing wrong.
INTERRUPTIONS = (HarnessExited, SandboxGone, StreamGap, Unreachable)


class Turn:
    """One turn from its request to its last event."""

    def __init__(self, journal: Journal, sandboxes: Sandboxes, default_model: str | None) -> None:
        self._journal = journal
        self._request = journal.request
        self._sandboxes = sandboxes
        self._default_model = default_model
        self._sandbox: DurableSandbox | None = None
        self._live: Live | None = None
        self._prompting = False
        self.cancelled = asyncio.Event()

    async def run(self) -> None:
        async with self._sandboxes.lock(self._request.session_id):
            end = await self._guarded(self._work())
            if self._sandbox is not None and self._live is not None:
                end = await self._settle(end)
                await self._guarded(self._sandboxes.keep_warm(self._live, self._journal.append))
            await self._journal.append(end)

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
        # Not interrupted by a cancel: a sandbox is never left half-made.
        self._sandbox, self._live = await self._sandboxes.acquire(
            self._request, self._journal.append
        )
        async with background() as tasks:
            talk = tasks.start(self._talk(self._sandbox, self._live))
            cancel = tasks.start(self.cancelled.wait())
            await asyncio.wait({talk, cancel}, return_when=asyncio.FIRST_COMPLETED)
            if not talk.done() and not self._prompting:
                return events.TurnCancelled(reason="cancelled before the prompt was sent")
            end: events.EventBase = await talk
            return end

    async def _talk(self, sandbox: DurableSandbox, live: Live) -> events.EventBase:
        request = self._request
        harness = harnesses.get(request.harness)
        choice = Choice(request.model or self._default_model, request.reasoning)
        known = live.adapters.get(harness.name)
        # Forgotten while it is used: a turn that dies half-way must not hand on a broken process.
        self._live = live.with_adapter(harness.name, None)
        self._sandboxes.live.put(self._live)
        conversation = Conversation(sandbox, harness, choice, self._journal.append)
        async with conversation.open(known):
            self._prompting = True
            stop_reason = await conversation.prompt(request.prompt, self.cancelled)
            self._live = self._live.with_adapter(harness.name, conversation.adapter())
        if self.cancelled.is_set():
            return events.TurnCancelled(reason="cancelled by request")
        return events.TurnCompleted(stop_reason=stop_reason)

    async def _settle(self, end: events.EventBase) -> events.EventBase:
        """The barrier, also after a failure: what was done is proven or said not to be."""
        assert self._sandbox is not None
        try:
            proof = await self._sandbox.workspace.barrier()
        except HoldfastError as error:
            if not isinstance(end, events.TurnCompleted):
                return end
            not_durable = error if isinstance(error, NotDurable) else NotDurable(str(error))
            return events.TurnFailed(error=events.ErrorInfo.model_validate(not_durable.body()))
        await self._journal.append(
            events.Receipt(
                engine=proof.engine,
                files=proof.files,
                bytes=proof.bytes,
                manifest_sha256=proof.manifest_sha256,
                took=proof.took,
            )
        )
        return end
