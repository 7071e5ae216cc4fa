"""A warm turn through the whole stack, beside the same harness driven directly over ACP.

    uv run python -m bench.turn [--harnesses claude,pi] [--rounds 8] [--answer 2] [--json]

Starts an embedded stack of its own. Both sides run the same adapter from the same tree with the
same settings, ask the same scripted model through the same gateway and get the same prompts; the
direct one talks over stdio and works in a plain directory: no box, mount, receipt or transcript.
They take turns, so that whatever else the machine does hits both of them.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import time
from collections import defaultdict
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table

from bench.direct import TURN_SECONDS, Bare, Direct
from bench.running import chosen_harnesses, embedded_stack, found_without_keys, model
from client import Holdfast
from contracts.bodies import Session
from sidecar.harnesses.registry import HARNESSES
from stack.embedded.layout import Layout
from stack.install.everything import Installed
from tests.support.services import short_directory

GOAL = 1.25
WARM_UP = 2
# Harnesses tidy up after their answer; the other side's turn should not pay for it.
SETTLE_SECONDS = 0.2
# The first two are whole turns; the others are what the stack's went into.
SPANS = ("direct", "stack", "open", "agent", "barrier", "deliver")

# Milliseconds of every round, by span.
Measured = defaultdict[str, list[float]]


class Task(NamedTuple):
    """One round's turn, the same on both sides."""

    file: str
    text: str
    prompt: str


def make_task(number: int, answer: float) -> Task:
    """Four model requests, three tool calls, and an answer that comes in small pieces."""
    file, text = f"notes-{number}.txt", f"what round {number} has to say"
    steps = [f"write {text} to {file}", f"run: wc -c {file} && ls -l", f"read {file}"]
    return Task(file, text, "\n".join(steps + [f"wait {answer} seconds"] * bool(answer)))


async def direct_turn(side: Direct, task: Task, measured: Measured) -> None:
    started = time.perf_counter()
    await side.prompt(task.prompt)
    measured["direct"].append(1000 * (time.perf_counter() - started))
    assert side.tool_calls >= 3, f"{side.tool_calls} tool calls"
    assert (side.workspace / task.file).read_text().strip() == task.text


async def stack_turn(hf: Holdfast, session: Session, task: Task, measured: Measured) -> str:
    """Returns how the harness was resumed."""
    posted = time.time()  # not a monotonic clock: the events' times are compared with it
    async with asyncio.timeout(TURN_SECONDS):
        events = [event async for event in hf.turns.run(session.id, task.prompt)]
    arrived = time.time()
    assert events[-1].type == "turn.completed", events[-1]
    assert sum(event.type == "tool.call" for event in events) >= 3
    assert (await hf.files.read(session.id, task.file)).decode().strip() == task.text
    resume = next(event for event in events if event.type == "resume")
    receipt = next(event for event in events if event.type == "receipt")
    ready, proven = resume.at.timestamp(), receipt.at.timestamp()
    answered = proven - receipt.took
    ends = (posted, ready, answered, proven, arrived)
    measured["stack"].append(1000 * (arrived - posted))
    for span, begin, end in zip(SPANS[2:], ends, ends[1:], strict=False):
        measured[span].append(1000 * (end - begin))
    return resume.rung


async def measure(hf: Holdfast, side: Direct, harness: str, tasks: list[Task]) -> dict[str, Any]:
    session = await hf.sessions.create(harness=harness, provider="local", permissions="auto")
    warming, measured = Measured(list), Measured(list)
    try:
        for number, task in enumerate(tasks):
            into = measured if number >= WARM_UP else warming
            for is_direct in (number % 2 == 0, number % 2 == 1):
                if is_direct:
                    await direct_turn(side, task, into)
                else:
                    rung = await stack_turn(hf, session, task, into)
                    assert number == 0 or rung == "warm", rung
                await asyncio.sleep(SETTLE_SECONDS)
    finally:
        await hf.sessions.delete(session.id)
    medians = {span: statistics.median(measured[span]) for span in SPANS}
    return {
        "harness": harness,
        "ratio": round(medians["stack"] / medians["direct"], 2),
        "added_ms": round(medians["stack"] - medians["direct"], 1),
        **{f"{span}_ms": round(ms, 1) for span, ms in medians.items()},
        "rounds_ms": {span: [round(ms, 1) for ms in measured[span]] for span in SPANS},
    }


async def run(
    harnesses: list[str], tasks: list[Task], installed: Installed, progress: Console
) -> dict[str, Any]:
    rows = []
    with short_directory() as place:
        layout = Layout(place / "data", place / "run")
        progress.print("starting a stack")
        async with embedded_stack(layout) as hf, model(layout.gateway_control) as gateway:
            engine = (await hf.capabilities()).providers[0].engine
            for name in harnesses:
                progress.print(f"{name}: {len(tasks)} rounds, of which {WARM_UP} to warm up")
                bare = Bare(HARNESSES[name], installed, gateway, place / name)
                bare.prepare()
                async with bare.start() as side:
                    await side.new_session()
                    rows.append(await measure(hf, side, name, tasks))
    return {"goal": GOAL, "engine": engine, "turn": rows}


def table(result: dict[str, Any]) -> Table:
    shown = Table(
        title=f"a warm turn, median ms; goal: a ratio of at most {GOAL}",
        caption=f"the workspace by {result['engine']}, an answer of {result['answer_s']:g} s; "
        "open: POST to prompt; agent: prompt to answer; deliver: receipt to client",
    )
    for column in ("harness", *SPANS[:2], "added", "ratio", *SPANS[2:]):
        shown.add_column(column, justify="left" if column == "harness" else "right")
    for row in result["turn"]:
        direct_ms, stack_ms, *spans = (f"{row[f'{span}_ms']:.0f}" for span in SPANS)
        ratio = f"[{'green' if row['ratio'] <= GOAL else 'red'}]{row['ratio']:.2f}[/]"
        shown.add_row(row["harness"], direct_ms, stack_ms, f"{row['added_ms']:.0f}", ratio, *spans)
    return shown


def main() -> None:
    parser = argparse.ArgumentParser(description="A turn through the stack beside a direct one.")
    parser.add_argument("--harnesses", default=",".join(HARNESSES), help="separated by commas")
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument(
        "--answer", type=float, default=2, help="seconds that the model takes over its answer"
    )
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    harnesses = chosen_harnesses(parser, options.harnesses)
    if options.rounds < 1 or not 0 <= options.answer < TURN_SECONDS / 2:
        parser.error("--rounds must be at least 1, --answer at least 0 and less than a minute")
    installed = found_without_keys(parser)
    tasks = [make_task(number, options.answer) for number in range(WARM_UP + options.rounds)]
    progress = Console(stderr=True)
    result = asyncio.run(run(harnesses, tasks, installed, progress))
    result["answer_s"] = options.answer
    if options.json:
        print(json.dumps(result))
    else:
        Console().print(table(result))


if __name__ == "__main__":
    main()
