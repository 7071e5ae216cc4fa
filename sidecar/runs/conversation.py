"""One turn's talk with the harness: prompt, stream, cancel, notice death; or hear out a prompt that
a sidecar before us had sent."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from typing import TYPE_CHECKING, Any, cast

from contracts import events
from contracts.errors import HarnessExited, HoldfastError, PromptFailed, TurnLimit
from sidecar.harnesses import agent_server
from sidecar.harnesses.acp import AcpConnection, Received
from sidecar.harnesses.base import Choice, Harness, belongs
from sidecar.providers.base import SandboxProcess
from sidecar.runs import permissions
from sidecar.runs.bounds import Flow
from sidecar.runs.joined import Joined, is_piece
from sidecar.runs.journal import Journal
from sidecar.runs.ladder import Brought, Ladder
from sidecar.runs.live import Adapter, Live, tokens_by_program
from sidecar.runs.permissions import Permissions
from sidecar.runs.progress import Talk
from sidecar.runs.states import States
from sidecar.tasks import background
from sidecar.workspace.engine import DurableSandbox

if TYPE_CHECKING:
    from sidecar.harnesses.normalise import Normaliser
    from sidecar.runs.joined import Piece

WATCH_SECONDS = 1.0
SILENT_SECONDS = 5.0
CANCEL_SECONDS = 10.0
# How long a harness is given to show that it got a prompt whose sender died while sending it.
DOUBT_SECONDS = 30.0
# Of a word that the harness chooses, such as why it stopped.
MOST_WORD_CHARS = 200


class Conversation:
    """A harness in a sandbox, for one turn."""

    def __init__(
        self,
        sandbox: DurableSandbox,
        harness: Harness,
        choice: Choice,
        journal: Journal,
        permissions: Permissions,
        flow: Flow,
    ) -> None:
        self._sandbox = sandbox
        self._harness = harness
        self._choice = choice
        self._journal = journal
        self._flow = flow
        self._emit = flow.emit
        self._permissions = permissions
        self._acp: AcpConnection
        self._before: list[SandboxProcess] = []
        self._left: list[SandboxProcess] = []  # what runs at the end
        self._normaliser: Normaliser
        self._last_heard = time.monotonic()
        # What an earlier sidecar has told already; 0 unless we go on with its turn.
        self._told_upto = 0

    @contextlib.asynccontextmanager
    async def open(self, live: Live, states: States) -> AsyncIterator[Brought]:
        """Bring the conversation back. Raises: HarnessError, SandboxError, StoreUnavailable."""
        self._before = await self._sandbox.processes()
        ladder = Ladder(self._sandbox, self._harness, self._choice, self._journal.request, states)
        async with (
            agent_server.connect(self._sandbox) as http,
            contextlib.AsyncExitStack() as stack,
            background() as tasks,
        ):
            normaliser = tasks.start(_new_normaliser())  # while the harness starts
            brought = await ladder.climb(stack, http, live, self._before)
            self._acp = brought.acp
            self._normaliser = await normaliser
            if brought.rung != "warm":
                self._before = await self._sandbox.processes()
            try:
                yield brought
            except Exception:
                await self._put_down()
                raise

    @contextlib.asynccontextmanager
    async def rejoin(self, talk: Talk) -> AsyncIterator[Coroutine[Any, Any, dict[str, Any]]]:
        """Hear the rest of what a prompt brings that an earlier sidecar has sent; yields the wait
        for its answer. Raises: HarnessError."""
        self._before = list(talk.processes)
        self._normaliser = await _new_normaliser()
        for entry in self._journal.entries():
            self._normaliser.recall(events.from_dict(entry.event))
        self._told_upto = max(talk.last_event_id, self._journal.last_source)
        asked = self._permissions.first_open
        async with agent_server.connect(self._sandbox) as http:
            self._acp = AcpConnection(
                http,
                talk.server_id,
                self._harness.name,
                session=talk.session,
                last_event_id=self._told_upto if asked is None else asked - 1,
            )
            answer = self._acp.expect_answer(talk.request_id)
            try:
                async with self._acp.listening():
                    yield answer
            except Exception:
                await self._put_down()
                raise

    def adapter(self) -> Adapter:
        """What the next turn needs to go on with this process."""
        assert self._acp.session is not None
        return Adapter(
            server_id=self._acp.server_id,
            session=self._acp.session,
            last_event_id=self._acp.last_event_id,
            choice=self._choice,
            epoch=self._journal.request.epoch,
            tokens=tokens_by_program(self._harness, self._left),
        )

    def fail(self, error: HoldfastError) -> None:
        """End the turn with this error: something that it needs does not work any more."""
        self._acp.lost(error)

    @property
    def session(self) -> str:
        assert self._acp.session is not None
        return self._acp.session

    async def prompt(
        self, text: str, cancelled: asyncio.Event, sending: Callable[[Talk], None]
    ) -> str:
        """Send the prompt, stream what comes, return the stop reason. `sending` is told how to
        hear the answer, before the prompt goes out.

        Raises: HarnessError.
        """
        request_id = self._acp.next_id()
        sending(
            Talk(
                server_id=self._acp.server_id,
                session=self.session,
                request_id=request_id,
                last_event_id=self._acp.last_event_id,
                processes=tuple(self._before),
            )
        )
        return await self._hear(self._acp.prompt(text, request_id), cancelled)

    async def hear_out(
        self,
        answer: Coroutine[Any, Any, dict[str, Any]],
        cancelled: asyncio.Event,
        *,
        certain: bool,
    ) -> str:
        """As `prompt`, for one that was sent before; not for `certain` if its sender died
        while sending it. Raises: HarnessError."""
        return await self._hear(answer, cancelled, doubtful=not certain)

    async def _hear(
        self,
        answer: Coroutine[Any, Any, dict[str, Any]],
        cancelled: asyncio.Event,
        *,
        doubtful: bool = False,
    ) -> str:
        async with background() as tasks:
            prompt = tasks.start(answer)
            tasks.start(self._watch())
            tasks.start(self._overdue())
            cancelling = tasks.start(self._cancel_when(cancelled, prompt))
            if doubtful:
                tasks.start(self._doubt(prompt))
            await self._stream(prompt)
            result = await self._answer(prompt)
            if cancelled.is_set():
                await cancelling
                await self._sweep()
                self._left = await self._sandbox.processes()
                return "cancelled"
        # Now and not before: a harness starts itself over for a moment while it sets up.
        self._left = await self._sandbox.processes()
        return str(result.get("stopReason", "end_turn"))[:MOST_WORD_CHARS]

    async def _answer(self, prompt: asyncio.Task[dict[str, Any]]) -> dict[str, Any]:
        """The answer to the prompt; an error because the harness died is told as its death."""
        try:
            return await prompt
        except PromptFailed as failed:
            now = self._programs(await self._sandbox.processes())
            if self._programs(self._before) - now:
                raise HarnessExited(failed.message) from failed
            raise

    async def _stream(self, prompt: asyncio.Task[dict[str, Any]]) -> None:
        """Journal what the agent says until the prompt is answered; text joined for a moment."""
        text = Joined(self._emit, self._journal.redactor)
        receive = asyncio.ensure_future(self._acp.received())
        try:
            while True:
                done, _ = await asyncio.wait(
                    {receive, prompt}, timeout=text.wait_for, return_when=asyncio.FIRST_COMPLETED
                )
                if receive in done:
                    await self._take(receive.result(), text)
                    receive = asyncio.ensure_future(self._acp.received())
                elif prompt in done:
                    break
                if text.due:
                    await text.flush_due()
        finally:
            receive.cancel()
        self._flow.hurry()
        for received in self._acp.drain():
            await self._take(received, text)
        await text.flush()

    async def _take(self, received: Received, text: Joined) -> None:
        self._last_heard = time.monotonic()
        await self._flow.heard(self._acp.heard_bytes)
        number, message = received
        told = number <= self._told_upto
        if message.get("method") == permissions.METHOD:
            await text.flush()
            await self._permissions.ask(self._acp, number, message, told=told)
            return
        event = None if told else self._normaliser.event(message, self._acp.session)
        if is_piece(event):
            await text.add(cast("Piece", event), number)
        elif event is not None:
            await text.flush()
            await self._emit(event, number)

    async def _watch(self) -> None:
        """A harness may die without a word (pi does, under many small deltas): watch its processes
        and not only its stream. A sandbox that is gone ends the turn the same way."""
        mine = self._programs(self._before)
        while True:
            await asyncio.sleep(WATCH_SECONDS)
            try:
                now = await self._sandbox.processes()
            except HoldfastError:
                continue
            missing = sorted(mine - self._programs(now))
            silent = time.monotonic() - self._last_heard
            if not now:
                self._acp.lost(HarnessExited("every process of the sandbox is gone"))
                return
            if missing and silent > SILENT_SECONDS:
                name = self._harness.name
                self._acp.lost(HarnessExited(f"{name} died without a word ({missing[0]})"))
                return

    def _programs(self, running: Iterable[SandboxProcess]) -> set[str]:
        """Names only: a program counts as running as long as one process runs it."""
        return set(tokens_by_program(self._harness, running))

    async def _put_down(self) -> None:
        """The turn goes on without the harness: neither it nor what it has started in this turn
        may write behind the barrier's back."""
        await self._acp.delete()
        earlier = {p.token for p in self._before}
        with contextlib.suppress(HoldfastError):  # a sandbox that is gone needs no more
            await self._sandbox.kill(
                [
                    p
                    for p in await self._sandbox.processes()
                    if belongs(self._harness, p)
                    or (p.token not in earlier and not agent_server.is_server(p))
                ]
            )

    async def _cancel_when(
        self, cancelled: asyncio.Event, prompt: asyncio.Task[dict[str, Any]]
    ) -> None:
        await cancelled.wait()
        await self._cancel(prompt, f"{self._harness.name} did not stop within {CANCEL_SECONDS} s")

    async def _cancel(self, prompt: asyncio.Task[dict[str, Any]], otherwise: str) -> None:
        self._flow.hurry()
        await self._acp.cancel()
        with contextlib.suppress(TimeoutError):  # a harness that takes no answer gets none
            async with asyncio.timeout(CANCEL_SECONDS):
                await self._permissions.withdraw()
        done, _ = await asyncio.wait({prompt}, timeout=CANCEL_SECONDS)
        if not done:
            self._acp.lost(HarnessExited(otherwise))

    async def _overdue(self) -> None:
        most = self._flow.bounds.turn_seconds
        await asyncio.sleep(most)
        hint = "HOLDFAST_TURN_SECONDS is the limit."
        self._acp.lost(TurnLimit(f"the turn took longer than {most:g} s", hint=hint))

    async def _doubt(self, prompt: asyncio.Task[dict[str, Any]]) -> None:
        """A harness that never got the prompt would keep the turn waiting for ever."""
        began = self._last_heard
        await asyncio.wait({prompt}, timeout=DOUBT_SECONDS)
        if not prompt.done() and self._last_heard == began:
            await self._cancel(
                prompt,
                "the sidecar was restarted while it sent the prompt, "
                f"and {self._harness.name} does not seem to have got it",
            )

    async def _sweep(self) -> None:
        """After a cancel no process of the cancelled tool stays."""
        if self._harness.reload_after_cancel and self._acp.session is not None:
            session = self._acp.session
            await self._acp.close_session()
            opened = await self._acp.load_session(session)
            await self._harness.configure(self._acp, opened, self._choice)
            self._acp.drain()
        earlier = {p.token for p in self._before}
        left = [
            p
            for p in await self._sandbox.processes()
            if p.token not in earlier and not belongs(self._harness, p)
        ]
        await self._sandbox.kill(left)


async def _new_normaliser() -> Normaliser:
    """The models of the agent's protocol take most of a second to import: not at the start of the
    sidecar, and in a thread, so that other turns go on."""
    module = await asyncio.to_thread(importlib.import_module, "sidecar.harnesses.normalise")
    made: Normaliser = module.Normaliser()
    return made
