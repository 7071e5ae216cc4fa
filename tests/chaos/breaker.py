"""Breaks one thing, by pid, and mends what can be mended: a pause ends, a bad S3 gets well."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
from collections.abc import AsyncIterator
from pathlib import Path

from client import Holdfast
from contracts.errors import HoldfastError
from tests.chaos.census import Process, everyone, look, take_census
from tests.chaos.plan import IN_BOX, LIGHT, PARTS, Action, Fault, Victim
from tests.chaos.s3_proxy import S3Faults

ADAPTERS = {
    "claude": "claude-agent-acp",
    "codex": "codex-acp",
    "opencode": "opencode",
    "pi": "pi-acp",
    LIGHT: "pi-acp",
}
# PostgreSQL's fast shutdown; the others stop as their supervisor stops them.
END_SIGNALS = {"postgres": signal.SIGINT}
# SeaweedFS needs 15 s, and has been seen to stay for minutes with its filer gone
END_SECONDS = 20.0
VICTIM_SECONDS = 5.0
# of a request: long enough to be felt, short enough for a client's own time-out
S3_DELAY = 0.7
S3_REFUSE = 0.6
S3_RESET = 0.5


class Breaker:
    def __init__(self, data_dir: Path, hf: Holdfast, s3: S3Faults) -> None:
        self._data_dir = data_dir
        self._hf = hf
        self._s3 = s3

    async def strike(self, fault: Fault, session_id: str, harness: str) -> str:
        """Do it, and what mends it; says what was hit. Nothing is left broken behind a cancel."""
        if fault.victim == "s3":
            async with self.bad_s3(fault.action):
                await asyncio.sleep(fault.seconds)
            return "s3"
        if (fault.victim, fault.action) == ("box", "end"):
            return await self._kill_by_api(session_id)
        victims = await self._victims(fault.victim, session_id, harness)
        if not victims:
            return "nobody there"
        if fault.action == "pause":
            await self._pause(victims, fault.seconds)
        elif fault.action == "kill":
            victims[0].signal(signal.SIGKILL)
        else:
            await self._end(victims[0], END_SIGNALS.get(fault.victim, signal.SIGTERM))
        return f"{victims[0].pid} {victims[0].name[:60]}"

    @contextlib.asynccontextmanager
    async def bad_s3(self, action: Action) -> AsyncIterator[None]:
        """S3 requests are broken for the time of the block."""
        if action == "delay":
            self._s3.delay = S3_DELAY
        elif action == "refuse":
            self._s3.refuse = S3_REFUSE
        else:
            self._s3.reset = S3_RESET
        try:
            yield
        finally:
            setattr(self._s3, action, 0.0)

    async def _kill_by_api(self, session_id: str) -> str:
        try:
            killed = await self._hf.sessions.kill(session_id)
        except HoldfastError as error:
            return f"not killed: {error.message}"
        return f"killed {killed.sandbox_id}"

    async def _end(self, part: Process, how: signal.Signals) -> None:
        """As whoever restarts a service does: ask, then insist."""
        part.signal(how)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(END_SECONDS):
                while part.alive():
                    await asyncio.sleep(0.1)
        part.signal(signal.SIGKILL)

    async def _pause(self, victims: list[Process], seconds: float) -> None:
        for victim in victims:
            victim.signal(signal.SIGSTOP)
        try:
            await asyncio.sleep(seconds)
        finally:
            for victim in victims:
                victim.signal(signal.SIGCONT)

    async def _victims(self, victim: Victim, session_id: str, harness: str) -> list[Process]:
        """Whom to hit, the chief first; empty when there is nobody for a while."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(VICTIM_SECONDS):
                while not (
                    found := await asyncio.to_thread(self._find, victim, session_id, harness)
                ):
                    await asyncio.sleep(0.05)
                return found
        return []

    def _find(self, victim: Victim, session_id: str, harness: str) -> list[Process]:
        if victim in PARTS:
            return self._part(victim)
        census = take_census(self._data_dir)
        if victim == "mount":
            return census.mounts.get(session_id, [])
        assert victim in IN_BOX
        for inside in census.boxes_of(session_id).values():
            return _in_box(inside, victim, harness)
        return []

    def _part(self, name: str) -> list[Process]:
        state = json.loads((self._data_dir / "state.json").read_text())
        pid = next(part["pid"] for part in state["parts"] if part["name"] == name)
        chief = look(pid) if pid else None
        if chief is None:
            return []
        # a paused postmaster alone would leave its backends answering
        own = [process for process in everyone() if process.parent == pid]
        return [chief, *own] if name == "postgres" else [chief]


def _in_box(inside: list[Process], victim: Victim, harness: str) -> list[Process]:
    if victim == "box":
        # the namespace's first process is the oldest; all others go with it
        return sorted(inside, key=lambda process: (process.started, process.pid))[:1]
    agents = [process for process in inside if process.argv[0].endswith("/sandbox-agent")]
    if victim == "agent" or not agents:
        return agents
    adapters = [
        process
        for process in inside
        if process.parent == agents[0].pid
        and any(ADAPTERS[harness] in word for word in process.argv)
    ]
    if victim == "adapter" or not adapters:
        return adapters
    found = adapters[0]
    while deeper := [p for p in inside if p.parent == found.pid and _is_harness(p)]:
        found = deeper[0]
    return [found]


def _is_harness(process: Process) -> bool:
    """As opposed to what its tools have started."""
    return process.argv[0] == "pi" or any("/opt/harness/" in word for word in process.argv[:3])
