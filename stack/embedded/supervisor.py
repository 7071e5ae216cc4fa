"""Starts the parts, starts again the ones that die, and stops them in reverse order."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from contracts.errors import HoldfastError
from stack.embedded.logs import STACK, Logs, OutputPipe
from stack.embedded.part import Hook, Part, PartState, State
from stack.embedded.processes import KILL_SECONDS, describe_exit, spawn
from stack.embedded.waiting import POLL_SECONDS, until
from stack.errors import PartFailed

FIRST_DELAY_SECONDS = 0.2
LONGEST_DELAY_SECONDS = 10.0
# A part that ran this long was healthy: its next death starts the back-off anew.
HEALTHY_SECONDS = 15.0
# A part that dies this often before it was ever ready is not going to come up.
START_ATTEMPTS = 3
# Grandchildren may hold the pipe open; what the part itself wrote is read well within this.
DRAIN_SECONDS = 1.0
HOOK_SECONDS = 120.0
# How often a part is asked whether it is stuck.
STUCK_SECONDS = 1.0
# One Ctrl-C may arrive twice: from the terminal and from a wrapper such as `uv run`.
SAME_SIGNAL_SECONDS = 1.0

OnChange = Callable[[], None]


class Supervisor:
    """Runs `parts` from `run()` until `stop()`; a part stops after all that need it."""

    def __init__(
        self, parts: Sequence[Part], *, pids: Path, logs: Logs, on_change: OnChange | None = None
    ) -> None:
        self.logs = logs
        self.stopping = asyncio.Event()
        self.all_ready = asyncio.Event()
        self.failure: HoldfastError | None = None
        self._on_change = on_change or (lambda: None)
        self._keepers = {part.name: _Keeper(part, self, pids) for part in parts}
        self._started = time.monotonic()
        self._asked_at = 0.0

    @property
    def states(self) -> list[PartState]:
        return [keeper.state for keeper in self._keepers.values()]

    def stop(self) -> None:
        """Ask for an orderly stop; asked again a moment later, everything is killed."""
        now = time.monotonic()
        if not self.stopping.is_set():
            self._asked_at = now
            self.stopping.set()
        elif now - self._asked_at > SAME_SIGNAL_SECONDS:
            self.say("asked again: killing what is left")
            for keeper in self._keepers.values():
                keeper.kill()

    async def run(self) -> None:
        """Start everything, stay until `stop()`, leave nothing running.

        Raises:
            HoldfastError: a part did not come up, or its cleanup failed; the rest was stopped.
        """
        self._started = time.monotonic()
        try:
            async with asyncio.TaskGroup() as group:
                for keeper in self._keepers.values():
                    keeper.task = group.create_task(keeper.run())
                await self.stopping.wait()
                for keeper in self._keepers.values():
                    group.create_task(keeper.stop(self._dependents(keeper.part)))
        finally:
            for keeper in self._keepers.values():
                keeper.kill()
        if self.failure is not None:
            raise self.failure

    def fail(self, error: HoldfastError) -> None:
        """Stop the stack, and let `run` raise the first such error."""
        self.say(error.message)
        self.failure = self.failure or error
        self.stopping.set()

    def say(self, text: str) -> None:
        self.logs.write(STACK, text)

    def changed(self) -> None:
        if all(state.state == "ready" for state in self.states):
            self.all_ready.set()
        self._on_change()

    def elapsed(self) -> float:
        return time.monotonic() - self._started

    def is_ready(self, names: tuple[str, ...]) -> bool:
        return all(self._keepers[name].state.state == "ready" for name in names)

    def _dependents(self, part: Part) -> list[_Keeper]:
        keepers = self._keepers.values()
        return [keeper for keeper in keepers if part.name in keeper.part.needs + keeper.part.uses]


class _Keeper:
    """Keeps one part running."""

    def __init__(self, part: Part, supervisor: Supervisor, pids: Path) -> None:
        self.part = part
        self.state = PartState(part.name)
        self.pid_file = pids / f"{part.name}.json"
        self.task: asyncio.Task[None] | None = None
        self._supervisor = supervisor
        self._process: asyncio.subprocess.Process | None = None
        self._over = asyncio.Event()
        self._clean = asyncio.Event()

    async def run(self) -> None:
        """Until the supervisor stops: wait for what this part needs, then keep it alive."""
        try:
            if await self._hook(self.part.first) and await self._wait_for_needs():
                await self._keep()
        finally:
            self._set("failed" if self.state.state == "failed" else "stopped", pid=None)
            self._over.set()

    async def stop(self, dependents: list[_Keeper]) -> None:
        """Stop after `dependents`; bounded by the part's `stop_seconds`, then SIGKILL."""
        for dependent in dependents:
            await dependent._clean.wait()
        part, say = self.part, self._supervisor.say
        try:
            if self._process is not None and self._process.returncode is None:
                self._set("stopping", pid=self.state.pid)
                say(f"{part.name}: stopping{part.stop_note and f' ({part.stop_note})'}")
                with suppress(ProcessLookupError):
                    self._process.send_signal(part.stop_signal)
                if not await until(self._over.is_set, part.stop_seconds):
                    if not part.stop_note:
                        say(f"{part.name}: still there after {part.stop_seconds:g} s, killing it")
                    self.kill()
            if not await until(self._over.is_set, KILL_SECONDS) and self.task is not None:
                say(f"{part.name}: does not end, left behind")
                self.task.cancel()
            await self._hook(part.cleanup)
        finally:
            self._clean.set()

    def kill(self) -> None:
        """SIGKILL to the whole group: a part may have started shells of its own."""
        if self._process is not None and self._process.returncode is None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)

    async def _wait_for_needs(self) -> bool:
        """False when the supervisor stops first."""
        while not self._supervisor.is_ready(self.part.needs):
            if self._supervisor.stopping.is_set():
                return False
            await asyncio.sleep(POLL_SECONDS)
        return True

    async def _keep(self) -> None:
        say, stopping = self._supervisor.say, self._supervisor.stopping
        delay = FIRST_DELAY_SECONDS
        attempts = 0
        while not stopping.is_set():
            began = time.monotonic()
            try:
                if not await self._hook(self.part.prepare):
                    return
                ended = self.state.last_exit = describe_exit(await self._live())
            except OSError as error:  # a full disk has room again, and processes can be started
                ended = f"cannot be started ({error})"
            if stopping.is_set():
                return
            attempts += 1
            if self.state.ready_after is None and attempts >= START_ATTEMPTS:
                self._fail(f"{self.part.name} {ended} and never became ready")
                return
            if time.monotonic() - began >= HEALTHY_SECONDS:
                delay = FIRST_DELAY_SECONDS
            say(f"{self.part.name}: {ended}, starting again in {delay:g} s")
            self.state.restarts += 1
            self._set("restarting", pid=None)
            await until(stopping.is_set, delay)
            delay = min(delay * 2, LONGEST_DELAY_SECONDS)

    async def _live(self) -> int:
        """One life of the part, from its start to its exit code."""
        pipe = await OutputPipe.open()
        try:
            process = await spawn(
                self.part.argv,
                env=self.part.env,
                cwd=self.part.cwd,
                pid_file=self.pid_file,
                output=pipe.write_end,
                stop_signal=self.part.stop_signal,
                stop_seconds=self.part.stop_seconds,
                wrapper=self.part.wrapper,
            )
        finally:
            pipe.child_has_it()
        self._process = process
        self._set("starting", pid=process.pid)
        async with asyncio.TaskGroup() as group:
            pump = group.create_task(pipe.pump(self._write))
            await self._watch_start(process)
            watch = group.create_task(self._watch_work(process))
            code = await process.wait()
            watch.cancel()
            await asyncio.wait({pump}, timeout=DRAIN_SECONDS)
            pipe.close()
            pump.cancel()
        self._forget_pid()
        return code

    def _forget_pid(self) -> None:
        self.pid_file.unlink(missing_ok=True)

    async def _watch_start(self, process: asyncio.subprocess.Process) -> None:
        """Until it is ready. What it uses comes first: its time to be ready starts with that."""
        deadline = time.monotonic() + self.part.ready_seconds
        while process.returncode is None and not self._supervisor.stopping.is_set():
            if not self._supervisor.is_ready(self.part.uses):
                deadline = time.monotonic() + self.part.ready_seconds
            elif await self.part.is_ready(process.pid):
                self._became_ready()
                return
            if time.monotonic() > deadline:
                self._write(f"not ready after {self.part.ready_seconds:g} s, killed")
                self.kill()
                return
            await asyncio.sleep(POLL_SECONDS)

    async def _watch_work(self, process: asyncio.subprocess.Process) -> None:
        """Kill a part that is ready and stuck; `_keep` starts it again."""
        while self.part.is_stuck is not None and not self._supervisor.stopping.is_set():
            if await self.part.is_stuck(process.pid):
                self._supervisor.say(f"{self.part.name}: does not do its work, killing it")
                self.kill()
                return
            await asyncio.sleep(STUCK_SECONDS)

    def _became_ready(self) -> None:
        if self.state.ready_after is None:
            self.state.ready_after = self._supervisor.elapsed()
        again = " again" if self.state.restarts else ""
        self._supervisor.say(f"{self.part.name}: ready{again}")
        self._set("ready", pid=self.state.pid)

    async def _hook(self, hook: Hook | None) -> bool:
        """Run a hook, bounded; False when it failed, which fails the stack. Raises: OSError."""
        if hook is None:
            return True
        try:
            async with asyncio.timeout(HOOK_SECONDS):
                said = await hook()
        except TimeoutError:
            self._fail(f"{self.part.name} could not be prepared within {HOOK_SECONDS:g} s")
        except HoldfastError as error:
            self.state.state = "failed"
            self._supervisor.fail(error)
        else:
            if said:
                self._supervisor.say(f"{self.part.name}: {said}")
            return True
        return False

    def _fail(self, message: str) -> None:
        self.state.state = "failed"
        tail = "\n".join(self._supervisor.logs.tail(self.part.name))
        self._supervisor.fail(
            PartFailed(message + (f"; it said:\n{tail}" if tail else ""), part=self.part.name)
        )

    def _write(self, text: str) -> None:
        self._supervisor.logs.write(self.part.name, text)
        if self.part.hear is not None:
            self.part.hear(text)

    def _set(self, state: State, *, pid: int | None) -> None:
        self.state.state = state
        self.state.pid = pid
        self.state.since = time.time()
        self._supervisor.changed()
