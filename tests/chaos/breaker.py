"""Breaks one thing and mends what can be mended: a pause ends, a bad S3 gets well, a full disk has
room again, a clock is right again."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
from collections.abc import AsyncIterator

import asyncpg

from client import Holdfast
from contracts.errors import HoldfastError
from tests.chaos.census import Process, everyone, look, take_census
from tests.chaos.checker import ASK_SECONDS, database_url
from tests.chaos.clocks import Clocks
from tests.chaos.damage import KEPT_BY, Damage, damage_record, find_record, find_unreported
from tests.chaos.disks import Disks
from tests.chaos.plan import DISKS, IN_BOX, LIGHT, PARTS, RECORDS, STEPPED, Action, Fault, Victim
from tests.chaos.report import Violation
from tests.chaos.s3_proxy import S3Faults
from tests.support.running_stack import RunningStack

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
# What was to be hit is not there.
NOBODY, NO_RECORD = "nobody there", "no such record"


class Breaker:
    def __init__(
        self, stack: RunningStack, hf: Holdfast, s3: S3Faults, disks: Disks, clocks: Clocks
    ) -> None:
        self._data_dir = stack.data_dir
        self._run_dir = stack.layout.run
        self._hf = hf
        self._s3 = s3
        self._disks = disks
        self._clocks = clocks
        self._damages: list[Damage] = []

    def why_not(self, fault: Fault) -> str:
        """Why a fault cannot be done on this machine; empty when it can."""
        reasons = {"fill": self._disks.why_not, "step": self._clocks.why_not}
        return reasons.get(fault.action, "")

    def find_unreported(self) -> list[Violation]:
        """Records that were damaged since the last call without a word of who read them. None
        can be asked for when the log's own disk was full."""
        damages, self._damages = self._damages, []
        was_full, self._disks.was_full = self._disks.was_full, set()
        if "data-disk" in was_full:
            return []
        return find_unreported(damages, self._data_dir / "logs")

    async def strike(self, fault: Fault, session_id: str, harness: str) -> str:
        """Do it, and what mends it; says what was hit. Nothing is left broken behind a cancel."""
        reason = self.why_not(fault)
        if reason:
            return f"left out: {reason}"
        if fault.victim == "s3":
            async with self.bad_s3(fault.action):
                await asyncio.sleep(fault.seconds)
            return "s3"
        if fault.victim in DISKS:
            return await self._fill(fault)
        if fault.action == "step":
            assert fault.victim in STEPPED
            async with self._clocks.stepped(fault.victim, fault.amount):
                await asyncio.sleep(fault.seconds)
            return "stepped there and back"
        if fault.victim in RECORDS:
            return await self._damage(fault, session_id)
        if (fault.victim, fault.action) == ("box", "end"):
            return await self._kill_by_api(session_id)
        victims = await self._victims(fault.victim, session_id, harness)
        if not victims:
            return NOBODY
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

    async def _fill(self, fault: Fault) -> str:
        async with self._disks.full(fault.victim):
            if fault.victim == "postgres-disk":
                # else it would have what it writes in these seconds allocated already
                await self._switch_wal()
            before = self._restarts("seaweedfs")
            await asyncio.sleep(fault.seconds)
        if fault.victim == "store-disk":
            # its supervisor is about to start it again, if it has met the full disk
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(VICTIM_SECONDS):
                    while self._restarts("seaweedfs") == before:
                        await asyncio.sleep(0.1)
        return "full"

    def _restarts(self, name: str) -> int:
        state = json.loads((self._data_dir / "state.json").read_text())
        return next(int(part["restarts"]) for part in state["parts"] if part["name"] == name)

    async def _switch_wal(self) -> None:
        with contextlib.suppress(OSError, TimeoutError, asyncpg.PostgresError, IndexError):
            async with asyncio.timeout(ASK_SECONDS):
                conn = await asyncpg.connect(database_url(self._data_dir))
                try:
                    await conn.execute("SELECT pg_switch_wal()")
                finally:
                    await conn.close()

    async def _damage(self, fault: Fault, session_id: str) -> str:
        """While its keeper is down: stopped first, and killed when the record is damaged."""
        deadline = asyncio.get_running_loop().time() + VICTIM_SECONDS
        while asyncio.get_running_loop().time() < deadline:
            keepers = await asyncio.to_thread(self._part, KEPT_BY[fault.victim])
            # nothing is waited for from here on: others may let it go on
            if keepers and keepers[0].signal(signal.SIGSTOP):
                path = find_record(fault.victim, self._data_dir, self._run_dir, session_id)
                if path is not None:
                    self._damages.append(damage_record(fault.victim, path, fault.amount))
                    keepers[0].signal(signal.SIGKILL)
                    return f"{path.name}, {KEPT_BY[fault.victim]} killed"
                keepers[0].signal(signal.SIGCONT)
            await asyncio.sleep(0.1)
        return NO_RECORD

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
        if victim == "backend":
            backends = [each for each in self._part("postgres")[1:] if _serves_a_client(each)]
            return backends[:1]
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


def _serves_a_client(process: Process) -> bool:
    """As opposed to PostgreSQL's own helpers; it says so in its title."""
    return process.argv[0].startswith("postgres: postgres holdfast ")


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
