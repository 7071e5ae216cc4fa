"""A run: rounds in batches, one round in each session at a time, everything checked in between.

Rounds of a batch run at the same time, so a fault of a shared part hits all of them; what is
checked is checked while nothing runs.

A round is: the turn under its faults; the check; a plain turn that must succeed; the check again.
Seconds to resume: from the end of the last turn and of the last fault of a batch to the first word
of the harness in the plain turn, without the time that the check in between takes.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from urllib.parse import urlsplit

import httpx

from client import Holdfast
from contracts.errors import HoldfastError
from tests.chaos.breaker import Breaker
from tests.chaos.census import take_census
from tests.chaos.checker import Checker, checking
from tests.chaos.clocks import stepped_clocks
from tests.chaos.disks import small_disks
from tests.chaos.evidence import keep_evidence
from tests.chaos.follower import Follower
from tests.chaos.lane import Lane, Struck
from tests.chaos.leaks import find_leaks
from tests.chaos.plan import HARNESSES, LIGHT, Round, plan_round, warm_seconds
from tests.chaos.report import Report, Violation
from tests.chaos.s3_proxy import S3Faults, S3Proxy
from tests.chaos.script import plain_script
from tests.support.light_agent.tree import light_agent
from tests.support.running_stack import RunningStack, running_stack
from tests.support.services import short_directory

READY_SECONDS = 90.0
CAUGHT_UP_SECONDS = 15.0
SAMPLE_SECONDS = 0.5
BATCHES_PER_PHASE = 6
# A box that is kept this long is there for every next turn.
LONG_SECONDS = 60.0

Say = Callable[[str], None]


@dataclass(frozen=True)
class Options:
    """`light`: a round that hits no harness has the light agent."""

    rounds: int
    seed: int
    engine: str = "weed"
    lanes: int = len(HARNESSES)
    first: int = 0
    per_round: int = 2
    evidence: Path | None = None
    light: bool = False


class StackLost(Exception):
    """The stack did not come back: there is nothing left to hit."""


@dataclass
class Run:
    stack: RunningStack
    hf: Holdfast
    breaker: Breaker
    options: Options
    report: Report
    say: Say
    warm: float
    lanes: list[Lane] = field(default_factory=list)
    _unready: str = ""
    _following: contextlib.AsyncExitStack = field(default_factory=contextlib.AsyncExitStack)

    async def all_rounds(self) -> None:
        """Raises: StackLost."""
        options = self.options
        numbers = range(options.first, options.first + options.rounds)
        batches = [numbers[at : at + options.lanes] for at in range(0, len(numbers), options.lanes)]
        async with self._following:
            self.lanes = [await self._new_lane() for _ in range(options.lanes)]
            for count, batch in enumerate(batches):
                if count and count % BATCHES_PER_PHASE == 0:
                    await self._next_phase(count // BATCHES_PER_PHASE)
                await self._batch([self._plan(number) for number in batch])
            for index in range(options.lanes):
                await self._delete(index)

    def _plan(self, number: int) -> Round:
        options = self.options
        plan = plan_round(options.seed, number, options.lanes, options.per_round, options.engine)
        if options.light and not plan.hits_harness:
            return replace(plan, harness=LIGHT, next_harness=LIGHT)
        return plan

    async def _batch(self, plans: list[Round]) -> None:
        lanes = [self.lanes[plan.lane] for plan in plans]
        found: list[Violation] = []
        async with self._watching_for_rivals(found):
            struck = await self._hit(plans, lanes, found)
            began = time.monotonic()
            await self._ready()
            settling = time.monotonic() - began
            async with checking(self.stack.data_dir) as checker:
                for plan, lane in zip(plans, lanes, strict=True):
                    await lane.settle(plan.script)
                    found += await self._check(lane, checker)
                found += await self._plain(plans, lanes, settling)
                for plan, lane in zip(plans, lanes, strict=True):
                    await lane.settle(plain_script(plan.number))
                    found += await self._check(lane, checker)
                    commits = lane.expected.commits
                    found += await checker.history(lane.session_id, plan.number, commits)
                found += await self._leaks(checker)
        found += self.breaker.find_unreported()
        self._tell(plans, struck, found)
        for plan in plans:
            if any(each.kind == "hang" and f"round {plan.number} " in each.what for each in found):
                await self._replace(plan.lane)

    async def _hit(
        self, plans: list[Round], lanes: list[Lane], found: list[Violation]
    ) -> list[Struck]:
        async with asyncio.TaskGroup() as group:
            pairs = zip(plans, lanes, strict=True)
            tasks = [group.create_task(lane.take(plan)) for plan, lane in pairs]
        for task in tasks:
            found += task.result()[1]
        return [task.result()[0] for task in tasks]

    async def _plain(
        self, plans: list[Round], lanes: list[Lane], settling: float
    ) -> list[Violation]:
        async with asyncio.TaskGroup() as group:
            tasks = [
                group.create_task(lane.plain(plain_script(plan.number), plan.next_harness))
                for plan, lane in zip(plans, lanes, strict=True)
            ]
        self.report.resumes += [settling + task.result()[0] for task in tasks]
        return [violation for task in tasks for violation in task.result()[1]]

    async def _check(self, lane: Lane, checker: Checker) -> list[Violation]:
        found = await lane.caught_up(checker, CAUGHT_UP_SECONDS)
        found += await checker.transcript(lane.follower)
        self.report.claims += len(lane.expected)
        return found + await checker.workspace(lane.session_id, lane.expected)

    async def _leaks(self, checker: Checker) -> list[Violation]:
        bearer = {"Authorization": f"Bearer {self.stack.token}"}
        async with httpx.AsyncClient(
            base_url=self.stack.url, headers=bearer, trust_env=False, timeout=30
        ) as http:
            kept = self.warm > LONG_SECONDS
            return await find_leaks(self.stack.data_dir, checker, http, boxes_are_kept=kept)

    @contextlib.asynccontextmanager
    async def _watching_for_rivals(self, found: list[Violation]) -> AsyncIterator[None]:
        """All the time, not only when all is quiet."""

        async def watch() -> None:
            while True:
                census = await asyncio.to_thread(take_census, self.stack.data_dir)
                self.report.boxes_seen += len(census.boxes)
                for session, living in census.rivals():
                    found.append(Violation("rival box", f"{session} has {living}"))
                await asyncio.sleep(SAMPLE_SECONDS)

        task = asyncio.create_task(watch())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _ready(self) -> None:
        """Raises: StackLost."""
        try:
            async with asyncio.timeout(READY_SECONDS):
                while not await self._is_ready():
                    await asyncio.sleep(0.1)
        except TimeoutError:
            parts = json.loads((self.stack.data_dir / "state.json").read_text())["parts"]
            states = {part["name"]: part["state"] for part in parts}
            what = f"not ready again within {READY_SECONDS:g} s: {states}, {self._unready}"
            self._blame("the stack", [Violation("stack", what)])
            raise StackLost(what) from None

    async def _is_ready(self) -> bool:
        state = json.loads((self.stack.data_dir / "state.json").read_text())
        if any(part["state"] != "ready" for part in state["parts"]):
            return False
        try:
            readiness = await self.hf.ready()
        except HoldfastError as error:
            self._unready = error.message
            return False
        self._unready = str(readiness.parts)
        # a lost record of who did what is told until the next one is written, which nobody may do
        needed = {name: said for name, said in readiness.parts.items() if name != "audit"}
        return all(said == "ok" for said in needed.values())

    async def _new_lane(self) -> Lane:
        session = await self.hf.sessions.create(title="chaos")
        follower = Follower(self.stack.url, self.stack.token, str(session.id))
        await self._following.enter_async_context(follower.following())
        engine = self.options.engine
        return Lane(self.hf, self.breaker, self.stack.data_dir, str(session.id), follower, engine)

    async def _replace(self, index: int) -> None:
        """A session whose turn hangs would spoil every round after it."""
        with contextlib.suppress(HoldfastError):
            await self.hf.sessions.delete(self.lanes[index].session_id)
        self.lanes[index] = await self._new_lane()

    async def _delete(self, index: int) -> None:
        """A session that is deleted leaves nothing."""
        session_id = self.lanes[index].session_id
        await self.hf.sessions.delete(session_id)
        async with checking(self.stack.data_dir) as checker:
            found = await checker.empty(session_id)
            found += await self._leaks(checker)
        self._blame(f"deletion of {session_id}", found)

    async def _next_phase(self, phase: int) -> None:
        """Down and up again with another warm time; one session is new from here on."""
        chance = random.Random(f"{self.options.seed}:phase:{phase}")
        index = chance.randrange(len(self.lanes))
        await self._delete(index)
        await self.stack.command("down")
        left = take_census(self.stack.data_dir).of_sessions()
        found = [Violation("leak", f"after down: {words}") for words in left.values()]
        self._blame(f"the stop before phase {phase}", found)
        self.warm = warm_seconds(self.options.seed, phase)
        await self.stack.command("up", "--detach", env={"HOLDFAST_WARM_SECONDS": str(self.warm)})
        self.lanes[index] = await self._new_lane()
        self.say(f"phase {phase}: boxes are kept for {self.warm:g} s")

    def _tell(self, plans: list[Round], struck: list[Struck], found: list[Violation]) -> None:
        for plan, result in zip(plans, struck, strict=True):
            self.report.rounds += 1
            self.report.ends[result.end] += 1
            for fault in plan.faults:
                kind, reason = f"{fault.action} {fault.victim}", self.breaker.why_not(fault)
                if reason:
                    self.report.left_out[kind] = reason
                elif fault in result.missed:
                    self.report.missed[kind] += 1
                else:
                    self.report.faults[kind] += 1
            hits = "; ".join(result.hits) or "calm"
            self.say(f"round {plan.number} {plan.harness}: {result.end} | {hits}")
        where = "rounds " + ", ".join(str(plan.number) for plan in plans)
        self._blame(where, found)

    def _blame(self, where: str, found: list[Violation]) -> None:
        new = self.report.add(where, found)
        for violation in new:
            self.say(f"  VIOLATION {violation.kind}: {violation.what}")
        if new and self.options.evidence is not None:
            followers = [lane.follower for lane in self.lanes]
            keep_evidence(self.options.evidence, where, new, self.stack.data_dir, followers)


async def run_chaos(options: Options, say: Say) -> Report:
    """All rounds on a stack of their own, which is gone afterwards."""
    report = Report(options.seed)
    warm = warm_seconds(options.seed, 0)
    with short_directory() as directory:
        directory.chmod(0o755)
        faults = S3Faults(chance=random.Random(options.seed))
        async with contextlib.AsyncExitStack() as up:
            clocks = up.enter_context(stepped_clocks())
            disks = await up.enter_async_context(small_disks(directory))
            data_dir = disks.data_dir
            proxy = S3Proxy(lambda: _store_address(data_dir), faults)
            await up.enter_async_context(proxy.serving())
            settings = {
                **(up.enter_context(light_agent()) if options.light else {}),
                "HOLDFAST_RUN_DIR": str(disks.run_dir),
                "HOLDFAST_S3_PROXY": proxy.url,
                "HOLDFAST_WORKSPACE": options.engine,
                "HOLDFAST_WARM_SECONDS": str(warm),
            }
            stack = await up.enter_async_context(
                running_stack(
                    data_dir, settings, holdfast=clocks.holdfast, disks=disks.places.values()
                )
            )
            say(f"seed {options.seed}, {options.engine}, boxes are kept for {warm:g} s")
            hf = await up.enter_async_context(Holdfast(stack.url, stack.token))
            run = Run(
                stack, hf, Breaker(stack, hf, faults, disks, clocks), options, report, say, warm
            )
            with contextlib.suppress(StackLost):
                await run.all_rounds()
                if not report.boxes_seen:
                    report.add("the census", [Violation("stack", "no box was ever seen")])
            report.s3_requests, report.s3_broken = proxy.passed, proxy.broken
    return report


def _store_address(data_dir: Path) -> tuple[str, int]:
    """Known only once the stack has chosen its ports."""
    address = urlsplit(json.loads((data_dir / "store.json").read_text())["endpoint"])
    return str(address.hostname), int(address.port or 0)
