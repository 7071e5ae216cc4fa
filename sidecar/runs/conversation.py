"""One turn's talk with the harness: bring the adapter up, prompt, stream, cancel, notice death."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import aiohttp

from contracts import events
from contracts.errors import HarnessExited, HoldfastError, PromptFailed
from sidecar.harnesses import agent_server, normalise
from sidecar.harnesses.acp import AcpConnection, Received
from sidecar.harnesses.base import Choice, Harness
from sidecar.harnesses.registry import HARNESSES
from sidecar.providers.base import HOME, SandboxProcess
from sidecar.runs.live import Adapter
from sidecar.tasks import background
from sidecar.workspace.engine import DurableSandbox

Emit = Callable[[events.EventBase, int | None], Awaitable[None]]

COALESCE_SECONDS = 0.05
COALESCE_CHARS = 16_384
WATCH_SECONDS = 1.0
SILENT_SECONDS = 5.0
CANCEL_SECONDS = 10.0
HARNESS_ROOT = "/opt/harness/"


class Conversation:
    """A harness in a sandbox, for one turn."""

    def __init__(
        self, sandbox: DurableSandbox, harness: Harness, choice: Choice, emit: Emit
    ) -> None:
        self._sandbox = sandbox
        self._harness = harness
        self._choice = choice
        self._emit = emit
        self._acp: AcpConnection
        self._normaliser = normalise.Normaliser()
        self._last_heard = time.monotonic()

    @contextlib.asynccontextmanager
    async def open(self, known: Adapter | None) -> AsyncIterator[None]:
        """Connect to the waiting adapter, or start one. Raises: HarnessError, SandboxError."""
        gateway = self._sandbox.gateway_url
        env = {k: v for harness in HARNESSES.values() for k, v in harness.env(gateway).items()}
        async with agent_server.connect(self._sandbox) as http:
            if known is not None and known.choice == self._choice:
                self._acp = AcpConnection(
                    http,
                    known.server_id,
                    self._harness.name,
                    session=known.session,
                    last_event_id=known.last_event_id,
                )
                rung: Any = "warm"
            else:
                await agent_server.ensure_running(self._sandbox, http, env)
                await self._start(http, known)
                rung = "new" if known is None else "native"
            try:
                async with self._acp.listening():
                    if rung != "warm":
                        opened = await self._open_session(known)
                        await self._harness.configure(self._acp, opened, self._choice)
                        self._acp.drain()
                    await self._emit(events.Resume(rung=rung), None)
                    yield
            except HoldfastError:
                await self._acp.delete()  # nobody will use it again
                raise

    async def _start(self, http: aiohttp.ClientSession, known: Adapter | None) -> None:
        if known is not None:  # another model: it is read from files when the adapter starts
            await AcpConnection(http, known.server_id, self._harness.name).delete()
        for path, text in self._harness.home(self._sandbox.gateway_url, self._choice).items():
            await self._sandbox.write(f"{HOME}/{path}", text.encode())
        server_id = f"{self._harness.name}-{secrets.token_hex(4)}"  # never one that was used before
        self._acp = await AcpConnection.start(http, server_id, self._harness.name)

    async def _open_session(self, known: Adapter | None) -> dict[str, Any]:
        if known is not None:
            with contextlib.suppress(PromptFailed):
                return await self._acp.load_session(known.session)
        return await self._acp.new_session()

    def adapter(self) -> Adapter:
        """What the next turn needs to go on with this process."""
        assert self._acp.session is not None
        return Adapter(
            self._acp.server_id, self._acp.session, self._acp.last_event_id, self._choice
        )

    async def prompt(self, text: str, cancelled: asyncio.Event) -> str:
        """Send the prompt, stream what comes, return the stop reason.

        Raises: HarnessError.
        """
        before = await self._sandbox.processes()
        async with background() as tasks:
            prompt = tasks.start(self._acp.prompt(text))
            tasks.start(self._watch(before))
            cancelling = tasks.start(self._cancel_when(cancelled, prompt))
            await self._stream(prompt)
            result = await self._answer(prompt, before)
            if cancelled.is_set():
                await cancelling
                await self._sweep(before)
                return "cancelled"
        usage = normalise.usage(result)
        if usage is not None:
            await self._emit(usage, None)
        return str(result.get("stopReason", "end_turn"))

    async def _answer(
        self, prompt: asyncio.Task[dict[str, Any]], before: list[SandboxProcess]
    ) -> dict[str, Any]:
        """The answer to the prompt; an error because the harness died is told as its death."""
        try:
            return await prompt
        except PromptFailed as failed:
            now = {p.token for p in await self._sandbox.processes()}
            if any(p.token not in now for p in before if self._is_harness(p)):
                raise HarnessExited(failed.message) from failed
            raise

    async def _stream(self, prompt: asyncio.Task[dict[str, Any]]) -> None:
        """Journal what the agent says until the prompt is answered; text joined for a moment."""
        text = _Joined(self._emit)
        receive = asyncio.ensure_future(self._acp.received())
        try:
            while True:
                wait_for = COALESCE_SECONDS if text.holds else None
                done, _ = await asyncio.wait(
                    {receive, prompt}, timeout=wait_for, return_when=asyncio.FIRST_COMPLETED
                )
                if receive in done:
                    await self._take(receive.result(), text)
                    receive = asyncio.ensure_future(self._acp.received())
                elif prompt in done:
                    break
                if text.due:
                    await text.flush()
        finally:
            receive.cancel()
        for received in self._acp.drain():
            await self._take(received, text)
        await text.flush()

    async def _take(self, received: Received, text: _Joined) -> None:
        self._last_heard = time.monotonic()
        number, message = received
        if message.get("method") == "session/request_permission":
            await text.flush()
            await self._allow(number, message)
            return
        event = self._normaliser.event(message)
        if isinstance(event, events.Message | events.Thought):
            await text.add(event, number)
        elif event is not None:
            await text.flush()
            await self._emit(event, number)

    async def _allow(self, number: int, message: dict[str, Any]) -> None:
        """`auto`: say yes, once, and put on record that nobody was asked."""
        params = message.get("params") or {}
        options = params.get("options") or []
        call = params.get("toolCall") or {}
        chosen = next((o for o in options if o.get("kind") == "allow_once"), None)
        permission_id = f"{self._acp.server_id}:{number}"
        await self._emit(
            events.PermissionAsked(
                permission_id=permission_id,
                tool_call_id=call.get("toolCallId"),
                title=str(call.get("title") or ""),
                options=options,
            ),
            number,
        )
        outcome = (
            {"outcome": "cancelled"}
            if chosen is None
            else {"outcome": "selected", "optionId": chosen["optionId"]}
        )
        await self._acp.respond(message.get("id"), {"outcome": outcome})
        option = None if chosen is None else str(chosen["optionId"])
        await self._emit(
            events.PermissionAnswered(permission_id=permission_id, option_id=option, by="auto"),
            None,
        )

    async def _watch(self, before: list[SandboxProcess]) -> None:
        """A harness may die without a word (pi does, under many small deltas): watch its processes
        and not only its stream. A sandbox that is gone ends the turn the same way."""
        mine = {p.token: p for p in before if self._is_harness(p)}
        while True:
            await asyncio.sleep(WATCH_SECONDS)
            try:
                now = {p.token for p in await self._sandbox.processes()}
            except HoldfastError:
                continue
            missing = [p for token, p in mine.items() if token not in now]
            silent = time.monotonic() - self._last_heard
            if not now:
                self._acp.lost(HarnessExited("every process of the sandbox is gone"))
                return
            if missing and silent > SILENT_SECONDS:
                what = " ".join(missing[0].argv[:2])
                self._acp.lost(HarnessExited(f"{self._harness.name} died without a word ({what})"))
                return

    def _is_harness(self, process: SandboxProcess) -> bool:
        """The harness or its adapter, as opposed to what its tools have started."""
        words = (*process.argv[:3], process.argv[-1])
        return process.argv[0] in self._harness.titles or any(HARNESS_ROOT in w for w in words)

    async def _cancel_when(
        self, cancelled: asyncio.Event, prompt: asyncio.Task[dict[str, Any]]
    ) -> None:
        await cancelled.wait()
        await self._acp.cancel()
        done, _ = await asyncio.wait({prompt}, timeout=CANCEL_SECONDS)
        if not done:
            self._acp.lost(
                HarnessExited(f"{self._harness.name} did not stop within {CANCEL_SECONDS} s")
            )

    async def _sweep(self, before: list[SandboxProcess]) -> None:
        """After a cancel no process of the cancelled tool stays."""
        if self._harness.reload_after_cancel and self._acp.session is not None:
            session = self._acp.session
            await self._acp.close_session()
            opened = await self._acp.load_session(session)
            await self._harness.configure(self._acp, opened, self._choice)
            self._acp.drain()
        earlier = {p.token for p in before}
        left = [
            p
            for p in await self._sandbox.processes()
            if p.token not in earlier and not self._is_harness(p)
        ]
        await self._sandbox.kill(left)


class _Joined:
    """Text that comes in small pieces, joined for at most COALESCE_SECONDS."""

    def __init__(self, emit: Emit) -> None:
        self._emit = emit
        self._pieces: list[str] = []
        self._first: events.Message | events.Thought | None = None
        self._number: int | None = None
        self._since = 0.0

    @property
    def holds(self) -> bool:
        return bool(self._pieces)

    @property
    def due(self) -> bool:
        old = time.monotonic() - self._since >= COALESCE_SECONDS
        return self.holds and (old or sum(map(len, self._pieces)) >= COALESCE_CHARS)

    async def add(self, event: events.Message | events.Thought, number: int) -> None:
        if self._first is not None and type(event) is not type(self._first):
            await self.flush()
        if self._first is None:
            self._first, self._since = event, time.monotonic()
        self._pieces.append(event.text)
        self._number = number

    async def flush(self) -> None:
        if self._first is not None:
            whole = self._first.model_copy(update={"text": "".join(self._pieces)})
            self._first, self._pieces = None, []
            await self._emit(whole, self._number)
