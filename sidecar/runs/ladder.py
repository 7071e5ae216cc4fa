"""The resume ladder: the best way that holds to bring a harness's conversation back.

warm: its process waits in the sandbox. native: its own state is there, or is put there, and loaded.
repaired: the same, after a torn end was mended. Below that it begins anew, and what it must know
comes with the prompt (handoff.py).
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import aiohttp

from contracts.bodies import RunRequest
from contracts.errors import HarnessError, HarnessStartFailed, PromptFailed
from sidecar.harnesses import agent_server
from sidecar.harnesses.acp import AcpConnection
from sidecar.harnesses.base import Choice, Harness, belongs
from sidecar.harnesses.registry import HARNESSES
from sidecar.harnesses.state import StateBroken, read_tar, write_tar
from sidecar.providers.base import SandboxProcess
from sidecar.runs.egress import is_proxied
from sidecar.runs.live import Live
from sidecar.runs.states import Native, States
from sidecar.tasks import background
from sidecar.workspace.engine import DurableSandbox

Rung = Literal["new", "warm", "native", "repaired", "handoff"]


@dataclass(frozen=True)
class Brought:
    """A conversation that is ready for a prompt, and the last turn that the harness knows of."""

    acp: AcpConnection
    rung: Rung
    known_epoch: int = 0
    notes: list[str] = field(default_factory=list)
    steps: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Furnished:
    """What HOME has: the conversation in the harness's own state, if any, and what was mended."""

    native: Native | None = None
    mended: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


class Ladder:
    def __init__(
        self,
        sandbox: DurableSandbox,
        harness: Harness,
        choice: Choice,
        request: RunRequest,
        states: States,
    ) -> None:
        self._sandbox = sandbox
        self._harness = harness
        self._choice = choice
        self._request = request
        self._states = states
        self._steps: dict[str, float] = {}

    @contextlib.contextmanager
    def _step(self, name: str) -> Iterator[None]:
        started = time.monotonic()
        try:
            yield
        finally:
            self._steps[name] = self._steps.get(name, 0.0) + time.monotonic() - started

    async def climb(
        self,
        stack: contextlib.AsyncExitStack,
        http: aiohttp.ClientSession,
        live: Live,
        running: Sequence[SandboxProcess],
    ) -> Brought:
        """Raises: HarnessError, SandboxError, StoreUnavailable."""
        known = live.adapters.get(self._harness.name)
        if known is not None and known.choice == self._choice and known.is_among(running):
            waiting = AcpConnection(
                http,
                known.server_id,
                self._harness.name,
                session=known.session,
                last_event_id=known.last_event_id,
            )
            await stack.enter_async_context(waiting.listening())
            return Brought(waiting, "warm", known.epoch)
        # Of another model, half dead, or left by a sidecar that died while it started it: it must
        # not write any more, and opencode lets no second one start.
        await self._sandbox.kill([p for p in running if belongs(self._harness, p)])
        async with background() as tasks:
            server = tasks.start(self._ensure_server(http))
            if known is not None:
                await server
                await AcpConnection(http, known.server_id, self._harness.name).delete()
            furnished = tasks.start(self._furnish(live))
            await server
            with self._step("state"):  # what it takes longer than the server
                state = await furnished
        return replace(await self._load(stack, http, state), steps=self._steps)

    async def _load(
        self, stack: contextlib.AsyncExitStack, http: aiohttp.ClientSession, state: Furnished
    ) -> Brought:
        notes = [*state.notes]
        acp = await self._start(stack, http)
        if state.native is not None:
            rung: Rung = "repaired" if state.mended else "native"
            brought = Brought(acp, rung, state.native.epoch, state.mended)
            try:
                with self._step("load"):
                    opened = await acp.load_session(state.native.session)
                    await self._harness.configure(acp, opened, self._choice)
            except HarnessError as error:
                notes.append(f"its own state could not be loaded: {error.message}")
                if not isinstance(error, PromptFailed):  # the process is gone, or as good as
                    await acp.delete()
                    acp = await self._start(stack, http)
            else:
                acp.drain()
                return brought
        with self._step("load"):
            opened = await acp.new_session()
            await self._harness.configure(acp, opened, self._choice)
        acp.drain()
        return Brought(acp, "new", notes=notes)

    async def _furnish(self, live: Live) -> Furnished:
        """Put the harness's settings into HOME, and its state, mended, unless it is there; in one
        go, as every command that enters the sandbox has its price.

        Raises: StoreUnavailable, SandboxError.
        """
        settings = self._harness.home(self._sandbox.gateway_url, self._choice)
        files: dict[str, bytes] = {}
        try:
            found, files = await self._restore(live)
        except StateBroken as broken:
            found = Furnished(notes=[str(broken)])
        files |= {path: text.encode() for path, text in settings.items()}
        await self._sandbox.unpack(await asyncio.to_thread(write_tar, files))
        return found

    async def _restore(self, live: Live) -> tuple[Furnished, dict[str, bytes]]:
        """The harness's state, and the files of it that have to be put into HOME.

        Raises: StateBroken, StoreUnavailable, SandboxError.
        """
        name, paths = self._harness.name, self._harness.state
        in_box = live.natives.get(name)
        if in_box is not None:
            native, tar = in_box, await self._sandbox.pack(paths.kept, paths.left)
        else:
            stored = await self._states.latest(self._request.session_id, name)
            if stored is None:
                return Furnished(), {}
            native = stored.native
            tar = await self._states.fetch(self._request.session_id, name, stored)
        files = await asyncio.to_thread(read_tar, tar)
        try:
            mended = await asyncio.to_thread(self._harness.mend, files)
        except (ValueError, AttributeError, LookupError, RecursionError, TypeError) as error:
            # what is in the files is the sandbox's to write
            raise StateBroken(f"its state cannot be read: {type(error).__name__}") from error
        return Furnished(native, mended), files if mended or in_box is None else {}

    async def _ensure_server(self, http: aiohttp.ClientSession) -> None:
        gateway, token = self._sandbox.gateway_url, self._sandbox.gateway_token
        env: dict[str, str] = {}
        for harness in HARNESSES.values():
            env |= harness.env(gateway, token)
        if is_proxied(self._request):
            env |= agent_server.proxies(gateway)
        with self._step("server"):
            await agent_server.ensure_running(self._sandbox, http, env)

    async def _start(
        self, stack: contextlib.AsyncExitStack, http: aiohttp.ClientSession
    ) -> AcpConnection:
        """An adapter that has answered; one that does not gets a second try, under a new server."""
        try:
            return await self._start_once(stack, http)
        except HarnessStartFailed:
            await self._sandbox.kill(
                [p for p in await self._sandbox.processes() if agent_server.is_server(p)]
            )
            await self._ensure_server(http)
            return await self._start_once(stack, http)

    async def _start_once(
        self, stack: contextlib.AsyncExitStack, http: aiohttp.ClientSession
    ) -> AcpConnection:
        server_id = f"{self._harness.name}-{secrets.token_hex(4)}"  # never one that was used before
        with self._step("start"):
            acp = await AcpConnection.start(http, server_id, self._harness.name)
        await stack.enter_async_context(acp.listening())
        return acp
