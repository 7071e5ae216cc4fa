"""The life of a box, the same for both backends: these say only how to boot, halt and freeze."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable, Mapping, Sequence
from enum import Enum, auto
from typing import Protocol

from emulators import netns
from emulators.boxes import HOMES, BoxFailed, BoxNotRunning, User
from emulators.inside import Command, Inside
from emulators.options import Way

END_SECONDS = 20


class Machine(Protocol):
    """What a box is made of. Every method raises BoxFailed."""

    environment: Mapping[str, str]  # of every process, as the image has it

    async def boot(self) -> Inside:
        """Start the first process, which idles."""
        ...

    async def halt(self) -> None:
        """Kill the first process and all others with it, frozen or not. Idempotent."""
        ...

    async def freeze(self) -> None: ...

    async def thaw(self) -> None: ...

    async def remove(self) -> None:
        """Remove all that is left after `halt`. Idempotent."""
        ...


class _State(Enum):
    RUNNING = auto()
    PAUSED = auto()
    STOPPED = auto()
    DESTROYED = auto()


class LivingBox:
    """A `Box`. It is stopped at first."""

    def __init__(
        self, box_id: str, machine: Machine, env: Mapping[str, str], reach: Sequence[Way]
    ) -> None:
        self.id = box_id
        self._machine = machine
        self._env = dict(env)
        self._reach = reach
        self._state = _State.STOPPED
        self._inside: Inside | None = None
        self._opened = contextlib.AsyncExitStack()
        self._changing = asyncio.Lock()

    def running(self) -> bool:
        return self._state is _State.RUNNING and self._inside is not None and self._inside.alive()

    async def exec(
        self,
        argv: Sequence[str],
        *,
        cwd: str = "/",
        env: Mapping[str, str] | None = None,
        user: User = "agent",
    ) -> Command:
        whole = {
            **self._machine.environment,
            **{"HOME": HOMES[user], "USER": user, "LOGNAME": user},
            **self._env,
            **(env or {}),
        }
        return await self._running().exec(argv, cwd=cwd, env=whole, user=user)

    async def connect(self, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await netns.connect(self._running().pidfd, port)

    async def read(self, path: str, user: User = "agent") -> bytes:
        return await self._running().read(path, user)

    async def write(self, path: str, data: bytes, user: User = "agent", mode: int = 0o644) -> None:
        await self._running().write(path, data, user, mode)

    async def pause(self) -> None:
        async with self._changing:
            self._running()
            await self._machine.freeze()
            self._state = _State.PAUSED

    async def resume(self) -> None:
        async with self._changing:
            if self._state is not _State.PAUSED:
                raise BoxNotRunning(f"the box {self.id} is not paused")
            await self._machine.thaw()
            self._state = _State.RUNNING

    async def stop(self) -> None:
        async with self._changing:
            if self._state is not _State.DESTROYED:
                await self._stop()

    async def start(self) -> None:
        async with self._changing:
            if self._state is _State.DESTROYED:
                raise BoxNotRunning(f"the box {self.id} is destroyed")
            if self._state is _State.PAUSED or self.running():
                return
            await self._stop()  # its first process may have died by itself
            try:
                await self._start()
            except BaseException:
                await self._stop()
                raise

    async def destroy(self) -> None:
        async with self._changing:
            await self._stop()
            await self._machine.remove()
            self._state = _State.DESTROYED

    def _running(self) -> Inside:
        if not self.running():
            raise BoxNotRunning(f"the box {self.id} does not run")
        assert self._inside is not None
        return self._inside

    async def _start(self) -> None:
        self._inside = await self._machine.boot()
        await self._opened.enter_async_context(netns.reaching(self._inside.pidfd, self._reach))
        self._state = _State.RUNNING

    async def _stop(self) -> None:
        # first of all: nothing new may begin in it
        self._state = _State.STOPPED
        await self._machine.halt()
        if self._inside is not None:
            if not await self._inside.ended(END_SECONDS):
                raise BoxFailed(f"the box {self.id} survives SIGKILL")
            self._inside.close()
            self._inside = None
        await self._opened.aclose()


async def destroy_all(boxes: Iterable[LivingBox]) -> None:
    """Raises: BoxFailed, when one is left; the others are gone."""
    failed = []
    for box in boxes:
        try:
            await box.destroy()
        except BoxFailed as error:
            failed.append(f"{box.id}: {error}")
    if failed:
        raise BoxFailed("; ".join(failed))
