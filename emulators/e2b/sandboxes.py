"""The sandboxes of an emulated E2B: their states, and their leases.

A lease is absolute: it ends at a moment, and then the sandbox is killed, or paused when it was made
so. Pausing freezes it, and every connection to it is cut. A paused sandbox has no lease.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from emulators.boxes import Box, BoxError, Boxes
from emulators.e2b.envd import Envd

log = logging.getLogger(__name__)

DEFAULT_SECONDS = 300
LONGEST_SECONDS = 24 * 3600  # what a paid team may ask for
# A sandbox that traffic has woken lives at least so long.
SHORTEST_AWAKE_SECONDS = 300


class State(StrEnum):
    RUNNING = "running"
    PAUSED = "paused"


class NoSuchSandbox(Exception):
    """It never was, or is gone."""


class TooLong(Exception):
    """It has run for as long as any sandbox may."""


@dataclass(frozen=True)
class Wish:
    """A sandbox to be."""

    template: str
    seconds: int = DEFAULT_SECONDS
    metadata: Mapping[str, str] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    pauses: bool = False
    keeps_memory: bool = True
    wakes: bool = False
    public: bool = True


class Sandbox:
    """One sandbox. `cut` is set when it stops running, and is another one when it runs again."""

    def __init__(self, sandbox_id: str, wish: Wish, box: Box) -> None:
        self.id = sandbox_id
        self.wish = wish
        self.box = box
        self.envd_token = secrets.token_hex(16)
        self.traffic_token = None if wish.public else secrets.token_hex(16)
        self.envd = Envd(box, self.envd_token)
        self.state = State.RUNNING
        self.has_memory = True
        self.started_at = time.time()
        self.ends_at = self.started_at + wish.seconds
        self.cut = asyncio.Event()
        self.changing = asyncio.Lock()

    def extend(self, seconds: float, *, shorten: bool) -> None:
        """Raises: TooLong; NoSuchSandbox, for a paused one, which has no lease."""
        if self.state is not State.RUNNING:
            raise NoSuchSandbox(self.id)
        now = time.time()
        left = self.started_at + LONGEST_SECONDS - now
        if left <= 0:
            raise TooLong("Max instance length exceeded")
        end = now + min(max(seconds, 0), left)
        if shorten or end > self.ends_at:
            self.ends_at = end

    async def pause(self, *, memory: bool) -> None:
        self.state = State.PAUSED
        self.has_memory = memory
        self.cut.set()
        if memory:
            await self.box.pause()
        else:
            await self.box.stop()

    async def resume(self, seconds: float, *, memory: bool) -> None:
        """Where it was; without memory, booted from its disk."""
        if self.has_memory and not memory:
            await self.box.stop()
        if self.has_memory and memory:
            await self.box.resume()
        else:
            await self.box.start()
        self.started_at = time.time()
        self.ends_at = self.started_at + seconds
        self.cut = asyncio.Event()
        self.state = State.RUNNING

    async def end(self) -> None:
        self.cut.set()
        await self.box.destroy()
        await self.envd.close()


class Sandboxes:
    """All of them. Every change of one sandbox is made by one caller at a time."""

    def __init__(self, boxes: Boxes) -> None:
        self._boxes = boxes
        self._all: dict[str, Sandbox] = {}
        self._changed = asyncio.Event()

    @contextlib.asynccontextmanager
    async def leasing(self) -> AsyncIterator[None]:
        """Leases end while the block runs; afterwards nobody looks after what sandboxes run."""
        ending = asyncio.create_task(self._end_leases())
        try:
            yield
        finally:
            ending.cancel()
            await asyncio.wait({ending})
            for sandbox in self._all.values():
                await sandbox.envd.close()

    async def create(self, wish: Wish) -> Sandbox:
        """Raises: BoxFailed."""
        sandbox_id = f"i{secrets.token_hex(10)}"
        box = await self._boxes.create(sandbox_id, wish.env)
        sandbox = self._all[sandbox_id] = Sandbox(sandbox_id, wish, box)
        self._changed.set()
        return sandbox

    def find(self, sandbox_id: str) -> Sandbox:
        """One whose box has died by itself is gone. Raises: NoSuchSandbox."""
        sandbox = self._all.get(sandbox_id)
        if sandbox is None:
            raise NoSuchSandbox(sandbox_id)
        settled = not sandbox.changing.locked() and sandbox.state is State.RUNNING
        if settled and not sandbox.box.running():
            raise NoSuchSandbox(sandbox_id)
        return sandbox

    def all(self) -> list[Sandbox]:
        """Newest first."""
        living = []
        for sandbox_id in self._all:
            with contextlib.suppress(NoSuchSandbox):
                living.append(self.find(sandbox_id))
        return sorted(living, key=lambda each: (each.started_at, each.id), reverse=True)

    @contextlib.asynccontextmanager
    async def change(self, sandbox_id: str) -> AsyncIterator[Sandbox]:
        """The sandbox, to nobody else. Raises: NoSuchSandbox."""
        sandbox = self.find(sandbox_id)
        async with sandbox.changing:
            if self._all.get(sandbox_id) is not sandbox:
                raise NoSuchSandbox(sandbox_id)
            yield sandbox
        self._changed.set()

    async def kill(self, sandbox_id: str) -> None:
        """Raises: NoSuchSandbox."""
        async with self.change(sandbox_id) as sandbox:
            del self._all[sandbox_id]
            await sandbox.end()

    async def wake(self, sandbox_id: str) -> None:
        """Traffic has come for it. Raises: NoSuchSandbox, for one that does not wake by that."""
        sandbox = self.find(sandbox_id)
        if not sandbox.wish.wakes or not sandbox.has_memory:
            raise NoSuchSandbox(sandbox_id)
        async with self.change(sandbox_id):
            if sandbox.state is State.PAUSED:
                seconds = max(sandbox.wish.seconds, SHORTEST_AWAKE_SECONDS)
                await sandbox.resume(seconds, memory=True)

    async def expire(self, sandbox_id: str) -> bool:
        """Its lease ends now."""
        try:
            await self._end_lease(sandbox_id)
        except NoSuchSandbox:
            return False
        return True

    async def delete(self, sandbox_id: str) -> bool:
        """It is killed without its owner asking."""
        try:
            await self.kill(sandbox_id)
        except NoSuchSandbox:
            return False
        return True

    async def _end_lease(self, sandbox_id: str) -> None:
        """Raises: NoSuchSandbox."""
        if not self.find(sandbox_id).wish.pauses:
            await self.kill(sandbox_id)
            return
        async with self.change(sandbox_id) as sandbox:
            if sandbox.state is State.RUNNING:
                await sandbox.pause(memory=sandbox.wish.keeps_memory)

    async def _end_leases(self) -> None:
        while True:
            self._changed.clear()
            running = [each for each in self._all.values() if each.state is State.RUNNING]
            first = min(running, key=lambda each: each.ends_at, default=None)
            left = None if first is None else first.ends_at - time.time()
            if first is not None and left is not None and left <= 0:
                await self._end_due(first)
                continue
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(left):
                    await self._changed.wait()

    async def _end_due(self, sandbox: Sandbox) -> None:
        try:
            await self._end_lease(sandbox.id)
        except NoSuchSandbox:
            self._all.pop(sandbox.id, None)
        except BoxError:
            log.exception("the lease of %s has ended, and its box cannot be ended", sandbox.id)
            self._all.pop(sandbox.id, None)
