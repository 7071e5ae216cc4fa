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
from contracts.errors import HarnessError, PromptFailed
from sidecar.harnesses import agent_server
from sidecar.harnesses.acp import AcpConnection
from sidecar.harnesses.base import Choice, Harness
from sidecar.harnesses.registry import HARNESSES
from sidecar.harnesses.state import StateBroken, read_tar, write_tar
from sidecar.providers.base import HOME, SandboxProcess
from sidecar.runs.live import Live
from sidecar.runs.states import Native, States
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
        if known is not None and known.choice == self._choice and known.among(running):
            waiting = AcpConnection(
                http,
                known.server_id,
                self._harness.name,
                session=known.session,
                last_event_id=known.last_event_id,
            )
            await stack.enter_async_context(waiting.listening())
            return Brought(waiting, "warm", known.epoch)
        gateway = self._sandbox.gateway_url
        env = {k: v for harness in HARNESSES.values() for k, v in harness.env(gateway).items()}
        with self._step("server"):
            await agent_server.ensure_running(self._sandbox, http, env)
        if known is not None:  # another model, or half dead
            await AcpConnection(http, known.server_id, self._harness.name).delete()
        with self._step("state"):
            for path, text in self._harness.home(gateway, self._choice).items():
                await self._sandbox.write(f"{HOME}/{path}", text.encode())
        brought = await self._load(stack, http, live)
        return replace(brought, steps=self._steps)

    async def _load(
        self, stack: contextlib.AsyncExitStack, http: aiohttp.ClientSession, live: Live
    ) -> Brought:
        notes: list[str] = []
        restored: tuple[Native, list[str]] | None = None
        try:
            with self._step("state"):
                restored = await self._restore(live)
        except StateBroken as broken:
            notes.append(str(broken))
        acp = await self._start(stack, http)
        if restored is not None:
            native, mended = restored
            brought = Brought(acp, "repaired" if mended else "native", native.epoch, mended)
            try:
                with self._step("load"):
                    opened = await acp.load_session(native.session)
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

    async def _restore(self, live: Live) -> tuple[Native, list[str]] | None:
        """Have the harness's state in HOME, mended; None if there is none.

        Raises: StateBroken, StoreUnavailable, SandboxError.
        """
        name, paths = self._harness.name, self._harness.state
        in_box = live.natives.get(name)
        if in_box is not None:
            native, tar = in_box, await self._sandbox.pack(paths.kept, paths.left)
        else:
            stored = await self._states.latest(self._request.session_id, name)
            if stored is None:
                return None
            native = stored.native
            tar = await self._states.fetch(self._request.session_id, name, stored)
        files = await asyncio.to_thread(read_tar, tar)
        mended = await asyncio.to_thread(self._harness.mend, files)
        if mended:
            tar = await asyncio.to_thread(write_tar, files)
        if mended or in_box is None:
            await self._sandbox.unpack(tar)
        return native, mended

    async def _start(
        self, stack: contextlib.AsyncExitStack, http: aiohttp.ClientSession
    ) -> AcpConnection:
        server_id = f"{self._harness.name}-{secrets.token_hex(4)}"  # never one that was used before
        with self._step("start"):
            acp = await AcpConnection.start(http, server_id, self._harness.name)
        await stack.enter_async_context(acp.listening())
        return acp
