"""A session that takes one round after another: its turns, its follower, what its files must be."""

from __future__ import annotations

import asyncio
import contextlib
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from client import Holdfast
from contracts.errors import HoldfastError, TurnRunning
from tests.chaos.breaker import NO_RECORD, NOBODY, Breaker
from tests.chaos.checker import ENDS, Checker, find_turn
from tests.chaos.follower import Event, Follower
from tests.chaos.plan import LIGHT, Fault, Round
from tests.chaos.report import Violation
from tests.chaos.script import Expected, Script
from tests.support.light_agent.tree import LIGHT as LIGHT_CHOICE

SEND_SECONDS = 90.0
# a turn that is hit may wait twice for a store that is away, and must end then
TURN_SECONDS = 180.0
PLAIN_SECONDS = 120.0
REMOUNTED = frozenset({"mount.lost", "mount.restored"})
FROM_HARNESS = frozenset({"message", "thought", "plan", "tool.call", "tool.update", "tool.result"})


@dataclass
class Struck:
    """What became of a round's turn."""

    end: str = "never sent"
    hits: list[str] = field(default_factory=list)
    missed: list[Fault] = field(default_factory=list)


@dataclass
class Lane:
    hf: Holdfast
    breaker: Breaker
    data_dir: Path
    session_id: str
    follower: Follower
    engine: str
    expected: Expected = field(default_factory=Expected)

    async def take(self, plan: Round) -> tuple[Struck, list[Violation]]:
        """The round's turn under its faults, to its end and to the end of the faults."""
        struck = Struck()
        first = self.follower.last
        over = asyncio.Event()
        async with asyncio.TaskGroup() as group:
            for fault in plan.faults:
                group.create_task(self._strike(fault, plan, first, over, struck))
            early = [fault.after for fault in plan.faults if fault.moment == "between"]
            await asyncio.sleep(max(early, default=0))
            end = await self._turn(plan.script, plan.harness, TURN_SECONDS)
            over.set()
        if end is None:
            return struck, [Violation("hang", f"{plan} did not end within {TURN_SECONDS:g} s")]
        struck.end = str(end["type"])
        return struck, []

    async def plain(self, script: Script, harness: str) -> tuple[float, list[Violation]]:
        """The turn that must succeed; also how long it took to the harness's first word."""
        began, first = time.monotonic(), self.follower.last
        heard = asyncio.create_task(self._first_word(first))
        try:
            end = await self._turn(script, harness, PLAIN_SECONDS)
            spoke = heard.result() if heard.done() else time.monotonic()
        finally:
            heard.cancel()
        if end is None:
            what = f"the turn after round {script.number} did not end in {PLAIN_SECONDS:g} s"
            return spoke - began, [Violation("hang", what)]
        if end["type"] != "turn.completed":
            what = f"after round {script.number} the turn is {end['type']}: {end.get('error')}"
            return spoke - began, [Violation("next turn", what)]
        return spoke - began, []

    async def settle(self, script: Script) -> None:
        """Take the script's turn, which has ended, into what the session's files must be."""
        turn = await find_turn(self.data_dir, self.session_id, script.prompt)
        if turn is None:
            self.expected.after(script, [], receipt=False, remounted=False)
            return
        events = self._events(0, turn)
        receipts = [event for event in events if event["type"] == "receipt"]
        # what a checkpoint's receipt says was lost was on the sandbox's disk alone, fsynced or not
        lost = self.engine == "checkpoint" and any(event["lost"] for event in receipts)
        self.expected.after(
            script,
            [] if lost else script.done(events),
            receipt=bool(receipts),
            remounted=any(event["type"] in REMOUNTED for event in events),
        )

    async def caught_up(self, checker: Checker, within: float) -> list[Violation]:
        """The follower must be shown everything that is stored."""
        last = await checker.last_seq(self.session_id)
        try:
            async with asyncio.timeout(within):
                await self.follower.wait_for(lambda event: event["seq"] >= last)
        except TimeoutError:
            what = f"{self.session_id}: the follower has {self.follower.last} of {last} events"
            return [Violation("event lost", what, last - self.follower.last)]
        return []

    async def _turn(self, script: Script, harness: str, within: float) -> Event | None:
        try:
            async with asyncio.timeout(SEND_SECONDS):
                turn_id = await self._send(script.prompt, harness)
            async with asyncio.timeout(within):
                return await self.follower.wait_for(
                    lambda event: event["turn_id"] == turn_id and event["type"] in ENDS
                )
        except TimeoutError:
            return None

    async def _send(self, prompt: str, harness: str) -> str:
        """Until it is accepted; a prompt whose answer was lost is looked for, not sent twice."""
        choice = LIGHT_CHOICE if harness == LIGHT else {"harness": harness}
        while True:
            try:
                turn = await self.hf.turns.start(self.session_id, prompt, **choice)
                return str(turn.id)
            except HoldfastError as error:
                if not error.retryable and not isinstance(error, TurnRunning):
                    raise
            found = await find_turn(self.data_dir, self.session_id, prompt)
            if found is not None:
                return found
            await asyncio.sleep(0.2)

    async def _first_word(self, first: int) -> float:
        await self.follower.wait_for(
            lambda event: (
                event["type"] in ENDS
                or (event["type"] in FROM_HARNESS and event.get("role") != "user")
            ),
            first,
        )
        return time.monotonic()

    async def _strike(
        self, fault: Fault, plan: Round, first: int, over: asyncio.Event, struck: Struck
    ) -> None:
        """Wait for the fault's moment, or for the turn's end: then it falls between two turns."""
        if fault.moment != "between":
            moment = asyncio.create_task(self._moment(fault, plan, first))
            ended = asyncio.create_task(over.wait())
            await asyncio.wait({moment, ended}, return_when=asyncio.FIRST_COMPLETED)
            for task in (moment, ended):
                task.cancel()
        async with contextlib.AsyncExitStack() as slowly:
            if fault.moment == "barrier":
                # a barrier is over within a tenth of a second, unless its store is slow
                await slowly.enter_async_context(self.breaker.bad_s3("delay"))
            await asyncio.sleep(fault.after)
            hit = await self.breaker.strike(fault, self.session_id, plan.harness)
        if hit in (NOBODY, NO_RECORD):
            struck.missed.append(fault)
        late = " (after the turn)" if over.is_set() else ""
        struck.hits.append(f"{fault}{late}: {hit}")

    async def _moment(self, fault: Fault, plan: Round, first: int) -> None:
        def wanted(event: Event) -> bool:
            kind: Any = event["type"]
            if fault.moment == "sent":
                return bool(kind == "turn.started")
            if fault.moment == "mounting":
                return kind in ("sandbox.creating", "sandbox.attached", "sandbox.ready")
            if fault.moment == "tool":
                return kind in ("tool.call", "tool.update")
            if kind != "message" or event.get("role") != "assistant":
                return False
            words = "tick" if fault.moment == "text" else plan.script.last_words
            return words in event["text"]

        await self.follower.wait_for(wanted, first)

    def _events(self, first: int, turn_id: str) -> list[Event]:
        return [
            event
            for event in self.follower.events
            if event["seq"] > first and event["turn_id"] == turn_id
        ]
