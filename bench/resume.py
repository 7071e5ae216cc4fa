"""How long until a session goes on, beside the harness's own bare start.

    uv run python -m bench.resume [--provider docker] [--harnesses claude,pi] [--rounds 5] [--json]

From the POST of a turn to the first word of the harness as a client sees it, split by step:

- warm: the box and the harness's process wait.
- cold: the box was killed; a new one, the harness's own state restored and loaded.
- unmounted: the same, and the mount's daemon was killed too.
- handoff: the box was killed, and another harness goes on, which knows nothing yet.

The bare side is the same adapter from the same tree over stdio, in a plain directory and with its
HOME as it left it: start, `session/load` (for handoff: `session/new` in a new HOME) and prompt, up
to its first word. Both take turns. Our part is the difference of the two medians; where a harness
takes seconds to start and the machine is busy, `own` is steadier: the total less start, load and
first word of that very turn, which leaves out what the box does to the harness's own speed.

On docker the bare side of a case that needs a new box also pays for one: `docker run` of the same
image doing nothing, measured in the same round.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import statistics
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from uuid import UUID

from rich.console import Console
from rich.table import Table

from bench.direct import TURN_SECONDS, Bare, Direct
from bench.running import chosen_harnesses, embedded_stack, found_without_keys, model
from client import Holdfast
from contracts.events import Event
from sidecar.boxhost import processes
from sidecar.boxhost.mounts import Mounts
from sidecar.harnesses.registry import HARNESSES
from stack.embedded.layout import Layout
from stack.install.everything import Installed
from tests.support.services import short_directory

# Case, the rung that it must take, and the most seconds that may be our part.
CASES = {
    "warm": ("warm", 0.3),
    "cold": ("native", 1.5),
    "unmounted": ("native", 1.5),
    "handoff": ("handoff", 1.5),
}
STEPS = ("api", "mount", "box", "server", "state", "start", "load", "first", "rest")
WARM_UP = 1
KILL_SECONDS = 10
# Harnesses tidy up after their answer; the other side's turn should not pay for it.
SETTLE_SECONDS = 0.3
TABLE_WIDTH = 130

Seconds = dict[str, float]


@dataclass
class Measured:
    """Seconds of every round, by case."""

    stack: defaultdict[str, list[Seconds]] = field(default_factory=lambda: defaultdict(list))
    bare: defaultdict[str, list[Seconds]] = field(default_factory=lambda: defaultdict(list))


def spoken(event: Event) -> bool:
    """Whether it is the harness that says or does something."""
    if event.type == "message":
        return event.role == "assistant"
    return event.type in ("thought", "tool.call")


def split(posted: float, heard: float, told: Sequence[Event]) -> Seconds:
    """Where the time from the POST to the first word went. `told`: up to that word."""
    by_type = {event.type: event for event in told}
    at = {kind: event.at.timestamp() for kind, event in by_type.items()}
    resume = by_type["resume"]
    assert resume.type == "resume"
    steps = dict.fromkeys(STEPS, 0.0) | resume.steps
    ready, mount = by_type.get("sandbox.ready"), by_type.get("mount.ready")
    if ready is not None and mount is not None:
        assert ready.type == "sandbox.ready"
        assert mount.type == "mount.ready"
        steps |= {"mount": mount.took, "box": ready.took - mount.took}
        steps["api"] = at["sandbox.creating"] - posted
    else:
        # A box that is there is attached to in one step, of which the mount's probe is the most.
        steps["api"] = at["turn.started"] - posted
        steps["mount"] = at["sandbox.attached"] - at["turn.started"]
    steps["first"] = told[-1].at.timestamp() - at["resume"]
    total = heard - posted
    steps["rest"] = total - sum(steps.values())
    own = total - steps["start"] - steps["load"] - steps["first"]
    return {**steps, "total": total, "own": own}


@dataclass
class StackSide:
    """A harness through the whole stack."""

    hf: Holdfast
    mounts: Mounts
    harness: str
    session: UUID
    provider: str

    async def turn(self, session: UUID, case: str, prompt: str) -> Seconds:
        """A turn, to its end; returns what it took up to the first word."""
        posted = time.time()  # not a monotonic clock: the events' times are compared with it
        told: list[Event] = []
        heard = 0.0
        async with asyncio.timeout(TURN_SECONDS):
            async for event in self.hf.turns.run(session, prompt, harness=self.harness):
                if not heard:
                    told.append(event)
                    heard = time.time() if spoken(event) else 0.0
        assert event.type == "turn.completed", event
        rung = next(event.rung for event in told if event.type == "resume")
        assert rung == CASES[case][0], f"{self.harness}, {case}: {rung}"
        return split(posted, heard, told)

    async def resume(self, case: str, prompt: str) -> Seconds:
        if case == "handoff":
            return await self._hand_over(prompt)
        if case != "warm":
            assert (await self.hf.sessions.kill(self.session)).killed
        if case == "unmounted":
            await kill_daemon(self.mounts, self.session)
        return await self.turn(self.session, case, prompt)

    async def _hand_over(self, prompt: str) -> Seconds:
        """In a session of its own: this harness must not know it yet."""
        other = "codex" if self.harness == "pi" else "pi"
        session = await self.hf.sessions.create(
            harness=other, provider=self.provider, permissions="auto"
        )
        try:
            await run_turn(self.hf, session.id)
            assert (await self.hf.sessions.kill(session.id)).killed
            return await self.turn(session.id, "handoff", prompt)
        finally:
            await self.hf.sessions.delete(session.id)


async def run_turn(hf: Holdfast, session: UUID) -> None:
    async with asyncio.timeout(TURN_SECONDS):
        ends = [event async for event in hf.turns.run(session, "say hello")]
    assert ends[-1].type == "turn.completed", ends[-1]


async def kill_daemon(mounts: Mounts, session: UUID) -> None:
    mount = mounts.get(str(session))
    assert mount is not None
    assert processes.kill(mount.daemon)
    assert await processes.wait_gone(mount.daemon, KILL_SECONDS)


async def docker_run(image: str) -> float:
    """Seconds that a container of the image takes to do nothing."""
    began = time.perf_counter()
    process = await asyncio.create_subprocess_exec(
        *("docker", "run", "--rm", "--network", "none", "--entrypoint", "true", image)
    )
    async with asyncio.timeout(TURN_SECONDS):
        assert await process.wait() == 0
    return time.perf_counter() - began


class BareSide:
    """The same harness without the stack. Enter it with `async with`. With an `image`, a case that
    needs a new box has a container of it on this side too."""

    def __init__(self, bare: Bare, image: str | None) -> None:
        self._bare = bare
        self._image = image
        self._running = contextlib.AsyncExitStack()
        self._side: Direct
        self._places = 0

    async def __aenter__(self) -> BareSide:
        self._bare.prepare()
        self._side = await self._running.enter_async_context(self._bare.start())
        await self._side.new_session()
        await self._side.prompt("say hello")
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._running.aclose()

    async def resume(self, case: str, prompt: str) -> Seconds:
        spans = await self._resume(case, prompt)
        if self._image is not None and case != "warm":
            spans["box"] = await docker_run(self._image)
            spans["total"] += spans["box"]
        return spans

    async def _resume(self, case: str, prompt: str) -> Seconds:
        if case == "handoff":
            self._places += 1
            place = self._bare.place.with_name(f"{self._bare.place.name}-{self._places}")
            elsewhere = replace(self._bare, place=place)
            elsewhere.prepare()
            async with contextlib.AsyncExitStack() as running:
                _, spans = await self._begin(running, elsewhere, None, prompt)
            return spans
        if case == "warm":
            return await self._say(self._side, prompt, {"start": 0.0, "load": 0.0})
        await self._running.aclose()
        self._side, spans = await self._begin(self._running, self._bare, self._side.session, prompt)
        return spans

    async def _begin(
        self, running: contextlib.AsyncExitStack, bare: Bare, session: str | None, prompt: str
    ) -> tuple[Direct, Seconds]:
        began = time.perf_counter()
        side = await running.enter_async_context(bare.start())
        started = time.perf_counter()
        await (side.new_session() if session is None else side.load_session(session))
        spans = {"start": started - began, "load": time.perf_counter() - started}
        return side, await self._say(side, prompt, spans)

    async def _say(self, side: Direct, prompt: str, spans: Seconds) -> Seconds:
        asked = time.perf_counter()
        await side.prompt(prompt)
        assert side.spoke is not None
        spans["first"] = side.spoke - asked
        return {**spans, "total": sum(spans.values())}


async def measure(stack: StackSide, bare: BareSide, rounds: int) -> Measured:
    measured, warming = Measured(), Measured()
    for number in range(WARM_UP + rounds):
        into = measured if number >= WARM_UP else warming
        for case in CASES:
            prompt = f"say {case} {number}"
            for is_bare in (number % 2 == 0, number % 2 == 1):
                if is_bare:
                    into.bare[case].append(await bare.resume(case, prompt))
                else:
                    into.stack[case].append(await stack.resume(case, prompt))
                await asyncio.sleep(SETTLE_SECONDS)
    return measured


def medians(rounds: Sequence[Seconds]) -> Seconds:
    return {span: round(statistics.median(each[span] for each in rounds), 4) for span in rounds[0]}


def rows(harness: str, measured: Measured) -> list[dict[str, Any]]:
    found = []
    for case, (_, goal) in CASES.items():
        stack, bare = medians(measured.stack[case]), medians(measured.bare[case])
        ours = round(stack["total"] - bare["total"], 4)
        found.append(
            {
                **{"harness": harness, "case": case, "goal_s": goal, "ours_s": ours},
                **{"met": ours <= goal, "stack_s": stack, "bare_s": bare},
                "rounds_s": {"stack": measured.stack[case], "bare": measured.bare[case]},
            }
        )
    return found


async def run(
    provider: str, harnesses: list[str], rounds: int, installed: Installed, progress: Console
) -> dict[str, Any]:
    found = []
    with short_directory() as place:
        layout = Layout(place / "data", place / "run")
        progress.print("starting a stack")
        async with embedded_stack(layout) as hf, model(layout.gateway_control) as gateway:
            engine = (await hf.capabilities()).providers[0].engine
            for name in harnesses:
                progress.print(f"{name}: {WARM_UP + rounds} rounds, of which {WARM_UP} to warm up")
                bare = Bare(HARNESSES[name], installed, gateway, place / name)
                found += rows(name, await of_harness(hf, layout.data, provider, name, bare, rounds))
    return {"provider": provider, "engine": engine, "resume": found}


async def of_harness(
    hf: Holdfast, data: Path, provider: str, harness: str, bare: Bare, rounds: int
) -> Measured:
    session = await hf.sessions.create(harness=harness, provider=provider, permissions="auto")
    image = os.environ.get("HOLDFAST_SANDBOX_IMAGE", "holdfast-sandbox:latest")
    try:
        await run_turn(hf, session.id)
        async with BareSide(bare, image if provider == "docker" else None) as bare_side:
            stack_side = StackSide(hf, Mounts(data), harness, session.id, provider)
            return await measure(stack_side, bare_side, rounds)
    finally:
        await hf.sessions.delete(session.id)


def table(result: dict[str, Any]) -> Table:
    shown = Table(
        title="a session goes on: POST to the first word of the harness, median seconds",
        caption=f"on {result['provider']}, the workspace by {result['engine']}; "
        "own: total less start, load and first; "
        "our part: total less the bare total",
    )
    spans = (*STEPS, "total", "own")
    for column in ("harness", "case", *spans, "our part", "goal"):
        shown.add_column(column, justify="left" if column in ("harness", "case") else "right")
    for row in result["resume"]:
        colour = "green" if row["met"] else "red"
        shown.add_row(
            row["harness"] if row["case"] == "warm" else "",
            row["case"],
            *(_seconds(row["stack_s"].get(span)) for span in spans),
            f"[{colour}]{row['ours_s']:.3f}[/]",
            f"{row['goal_s']:g} {'met' if row['met'] else 'missed'}",
        )
        bare = (_seconds(row["bare_s"].get(span)) for span in spans)
        shown.add_row("", "  bare", *bare, style="dim", end_section=row["case"] == "handoff")
    return shown


def _seconds(value: float | None) -> str:
    return f"{value:.3f}" if value else ""


def main() -> None:
    parser = argparse.ArgumentParser(description="How long until a session goes on.")
    parser.add_argument("--provider", choices=("local", "docker"), default="local")
    parser.add_argument("--harnesses", default=",".join(HARNESSES), help="separated by commas")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    harnesses = chosen_harnesses(parser, options.harnesses)
    if options.rounds < 1:
        parser.error("--rounds must be at least 1")
    installed = found_without_keys(parser)
    result = asyncio.run(
        run(options.provider, harnesses, options.rounds, installed, Console(stderr=True))
    )
    if options.json:
        print(json.dumps(result))
    else:
        Console(width=TABLE_WIDTH).print(table(result))


if __name__ == "__main__":
    main()
