"""Many sessions, turns and followers at a time, for minutes: is an event lost, does memory grow?

    uv run python -m bench.load [--sessions 200] [--turns 50] [--followers 500] [--minutes 5]

Starts an embedded stack of its own with real boxes, mounts and sandbox-agents; in place of pi a
stand-in speaks ACP (bench/stand_in/), so that the load is the stack's and not a model's.
Each of `--turns` workers keeps one turn running, goes to another of its sessions every now and
then (a new box), and knows from its followers when a turn is over. At the end every follower's view
is compared, line by line, with what PostgreSQL has, and that with what the stand-ins said.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import UUID

import aiohttp
import asyncpg
from rich.console import Console
from rich.table import Table

from bench.load_followers import LINE_BYTES, Follower, Seen, check_stored
from bench.load_watch import Watch, percentiles
from bench.running import embedded_stack, found_without_keys
from client import Holdfast
from contracts.errors import HoldfastError
from stack.embedded import postgres
from stack.embedded.layout import Layout
from stack.install.everything import Installed
from stack.install.tree import harness_tree
from tests.support.services import short_directory

STAND_IN = Path(__file__).with_name("stand_in") / "harness.py"
PYTHON = Path("/usr/bin/python3")  # which every box has, if this machine does
HARNESS = "pi"
TURN_SECONDS = 300.0
DRAIN_SECONDS = 60.0
CREATE_AT_A_TIME = 20
FLAT = 0.10  # how far memory may be from where it was after the warm-up
JUDGED_MINUTES = 3.0  # memory of a shorter run says nothing
WARM_UP = 0.2  # of the time
SHOWN_PROBLEMS = 10
STORED = "SELECT body::text FROM events WHERE session_id = $1 ORDER BY seq"


@dataclass(frozen=True)
class Load:
    """What is asked for. `pieces` of text are a turn, with `pause` seconds after each."""

    sessions: int = 200
    turns: int = 50
    followers: int = 500
    seconds: float = 300.0
    pieces: int = 40
    pause: float = 0.25
    tool_every: int = 10
    durability: str = "mount"


@dataclass
class Done:
    """What came of it: how turns ended, and which pieces of text were ordered of which session."""

    ends: Counter[str] = field(default_factory=Counter)
    orders: dict[UUID, dict[str, int]] = field(default_factory=dict)
    errors: list[str] = field(default_factory=list)


@contextlib.contextmanager
def stand_in_cache(installed: Installed) -> Iterator[Path]:
    """A cache with a harness tree in which the stand-in is pi's adapter; boxes can read it."""
    cache = Path(tempfile.mkdtemp(prefix="hf-load-"))
    try:
        programs = cache / "harnesses" / harness_tree().key / "bin"
        programs.mkdir(parents=True)
        for name in harness_tree().programs:
            (programs / name).write_text("#!/bin/sh\nexit 1\n")
        shutil.copyfile(installed.tree.path / "bin" / "sandbox-agent", programs / "sandbox-agent")
        shutil.copyfile(STAND_IN, programs / "pi-acp")
        for path in (cache, *cache.rglob("*")):
            path.chmod(0o755)
        yield cache
    finally:
        shutil.rmtree(cache)


class Worker:
    """Keeps one turn running until the time is over, on one of its sessions after the other."""

    def __init__(self, number: int, load: Load, sessions: Sequence[UUID], seen: Seen) -> None:
        self._number = number
        self._load = load
        self._sessions = sessions
        self._seen = seen

    async def run(self, hf: Holdfast, done: Done, until: float) -> None:
        load, began = self._load, time.monotonic()
        stay = load.seconds / len(self._sessions)
        # Spread out: they would all move on at the same moment.
        ahead = stay * self._number / load.turns
        turn = 0
        while time.monotonic() < until:
            stays = int((time.monotonic() - began + ahead) / stay)
            session_id = self._sessions[stays % len(self._sessions)]
            turn += 1
            try:
                end = await self._turn(hf, session_id, f"w{self._number}t{turn}", done)
            except (HoldfastError, TimeoutError) as error:
                end = type(error).__name__
                done.errors.append(f"{session_id}: {end}: {error}")
                await asyncio.sleep(load.pause)
            done.ends[end] += 1

    async def _turn(self, hf: Holdfast, session_id: UUID, name: str, done: Done) -> str:
        load = self._load
        order = {"turn": name, "pieces": load.pieces, "pause": load.pause}
        order["tool_every"] = load.tool_every
        started = await hf.turns.start(session_id, json.dumps(order))
        async with asyncio.timeout(TURN_SECONDS):
            end = await asyncio.shield(self._seen.ends[str(started.id)])
        if end == "turn.completed":
            done.orders[session_id][name] = load.pieces
        else:
            done.errors.append(f"{session_id}: turn {name}: {end}")
        return end


async def make_sessions(hf: Holdfast, load: Load) -> list[UUID]:
    made: list[UUID] = []
    while len(made) < load.sessions:
        async with asyncio.TaskGroup() as group:
            tasks = [
                group.create_task(
                    hf.sessions.create(
                        title=f"load {len(made) + number}",
                        harness=HARNESS,
                        provider="local",
                        durability="checkpoint" if load.durability == "checkpoint" else None,
                    )
                )
                for number in range(min(CREATE_AT_A_TIME, load.sessions - len(made)))
            ]
        made += [task.result().id for task in tasks]
    return made


async def stored_lines(layout: Layout, sessions: Sequence[UUID]) -> dict[UUID, list[bytes]]:
    """Straight from PostgreSQL: what followers see comes through the api."""
    conn = await asyncpg.connect(postgres.database_url(layout))
    try:
        return {
            sid: [row["body"].encode() for row in await conn.fetch(STORED, sid)] for sid in sessions
        }
    finally:
        await conn.close()


async def drain(followers: Sequence[Follower], stored: dict[UUID, list[bytes]]) -> None:
    """Wait until every follower has as many events as there are, or the time for it is over."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(DRAIN_SECONDS):
            while any(len(each.hashes) < len(stored[each.session_id]) for each in followers):
                await asyncio.sleep(0.1)


async def work(hf: Holdfast, layout: Layout, load: Load, progress: Console) -> dict[str, Any]:
    sessions, seen, watch, done = await make_sessions(hf, load), Seen(), Watch(layout), Done()
    done.orders = {session_id: {} for session_id in sessions}
    followers = [Follower(sessions[n % load.sessions], seen) for n in range(load.followers)]
    workers = [Worker(n, load, sessions[n :: load.turns], seen) for n in range(load.turns)]
    url = json.loads(layout.api.read_text())["url"]
    bearer = {"Authorization": f"Bearer {layout.token.read_text().strip()}"}
    async with (
        aiohttp.ClientSession(
            f"{url}/",
            headers=bearer,
            connector=aiohttp.TCPConnector(limit=0),
            read_bufsize=LINE_BYTES,
        ) as http,
        asyncio.TaskGroup() as group,
    ):
        background = [group.create_task(each.run(http)) for each in followers]
        background.append(group.create_task(watch.run()))
        async with asyncio.timeout(DRAIN_SECONDS):
            for each in followers:
                await each.open.wait()
        progress.print(f"{load.followers} followers of {load.sessions} sessions are there")
        began, until = time.time(), time.monotonic() + load.seconds
        turns = [group.create_task(each.run(hf, done, until)) for each in workers]
        await tell_progress(turns, seen, done, progress)
        ended = time.time()
        stored = await stored_lines(layout, sessions)
        await drain(followers, stored)
        for task in background:
            task.cancel()
    problems = [problem for each in followers for problem in each.compare(stored[each.session_id])]
    for session_id, lines in stored.items():
        problems += check_stored(session_id, lines, done.orders[session_id])
    taken = ended - began
    return {
        **numbers(load, seen, done, stored, taken),
        "lost": len(problems),
        "problems": problems[:SHOWN_PROBLEMS],
        "memory": watch.memory(began, began + WARM_UP * load.seconds),
        **latency(seen, watch, began + WARM_UP * load.seconds),
    }


async def tell_progress(
    turns: Sequence[asyncio.Task[None]], seen: Seen, done: Done, progress: Console
) -> None:
    while pending := [task for task in turns if not task.done()]:
        await asyncio.wait(pending, timeout=30)
        ends = ", ".join(f"{count} {end}" for end, count in sorted(done.ends.items()))
        progress.print(f"turns: {ends or 'none yet'}; {len(seen.late):,} events delivered")


def numbers(
    load: Load, seen: Seen, done: Done, stored: dict[UUID, list[bytes]], taken: float
) -> dict[str, Any]:
    events = sum(map(len, stored.values()))
    return {
        "sessions": load.sessions,
        "turns_at_a_time": load.turns,
        "followers": load.followers,
        "seconds": round(taken, 1),
        "durability": load.durability,
        "ends": dict(done.ends),
        "errors": done.errors[:SHOWN_PROBLEMS],
        "events": events,
        "events_per_second": round(events / taken, 1),
        "delivered": len(seen.late),
        "delivered_per_second": round(len(seen.late) / taken, 1),
        "reconnects": seen.reconnects,
    }


def latency(seen: Seen, watch: Watch, warm: float) -> dict[str, Any]:
    """After the warm-up: noted to seen, said to seen, and a commit."""
    late = [late for at, late in zip(seen.arrived, seen.late, strict=True) if at >= warm]
    said = [late for at, late in zip(seen.said_arrived, seen.said_late, strict=True) if at >= warm]
    commits = [took for at, took in watch.commits if at >= warm]
    return {
        "noted_to_seen_ms": percentiles(late),
        "said_to_seen_ms": percentiles(said),
        "commit_ms": percentiles(commits),
    }


async def run(load: Load, installed: Installed, progress: Console) -> dict[str, Any]:
    """The load on a stack of its own; `ok` says whether it held."""
    with stand_in_cache(installed) as cache, short_directory() as place:
        layout = Layout(place / "data", place / "run")
        settings = {
            "HOLDFAST_CACHE": str(cache),
            "HOLDFAST_BWRAP": str(installed.bwrap),
            "HOLDFAST_WARM_SANDBOXES": str(max(8, load.turns // 5)),
            "HOLDFAST_LOG_LEVEL": "warning",
        }
        progress.print("starting a stack")
        async with embedded_stack(layout, settings) as hf:
            engine = (await hf.capabilities()).providers[0].engine
            result = {"engine": engine, **await work(hf, layout, load, progress)}
            leaks = (await hf.leaks()).leaks
            logged = warnings(layout)
    result |= {"leaks": len(leaks), "warnings": logged}
    judged = load.seconds >= 60 * JUDGED_MINUTES
    flat = {name: abs(result["memory"][name]["ratio"] - 1) <= FLAT for name in ("api", "sidecar")}
    result["flat"] = flat if judged else None
    only_completed = set(result["ends"]) == {"turn.completed"}
    result["ok"] = not result["lost"] and only_completed and (not judged or all(flat.values()))
    return result


def warnings(layout: Layout) -> dict[str, int]:
    """How often each part complained in its log, by the first words of it."""
    counted: Counter[str] = Counter()
    for log in sorted(layout.logs.glob("*.log")):
        for line in log.read_text(errors="replace").splitlines():
            if any(level in line for level in ("WARNING", "ERROR", "CRITICAL")):
                counted[f"{log.stem}: {' '.join(line.split()[:8])}"] += 1
    return dict(counted.most_common(SHOWN_PROBLEMS))


def table(result: dict[str, Any]) -> Table:
    shown = Table(title="a load: goal: nothing lost, memory flat within 10 %", show_header=False)
    for name in (
        *(
            "engine",
            "sessions",
            "turns_at_a_time",
            "followers",
            "seconds",
            "durability",
            "ends",
            "events",
        ),
        *("events_per_second", "delivered", "delivered_per_second", "reconnects", "lost"),
        *("noted_to_seen_ms", "said_to_seen_ms", "commit_ms", "leaks", "warnings"),
    ):
        shown.add_row(name.replace("_", " "), str(result[name]))
    for name, memory in result["memory"].items():
        shown.add_row(f"memory of {name}", str(memory))
    for problem in (*result["problems"], *result["errors"]):
        shown.add_row("[red]problem[/]", problem)
    shown.add_row("ok", "[green]yes[/]" if result["ok"] else "[red]no[/]")
    return shown


def main() -> None:
    parser = argparse.ArgumentParser(description="Many sessions, turns and followers at a time.")
    parser.add_argument("--sessions", type=int, default=200)
    parser.add_argument("--turns", type=int, default=50, help="how many run at a time")
    parser.add_argument("--followers", type=int, default=500)
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--pieces", type=int, default=40, help="of text in a turn")
    parser.add_argument("--pause", type=float, default=0.25, help="seconds after each piece")
    parser.add_argument("--durability", choices=("mount", "checkpoint"), default="mount")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if not 1 <= options.turns <= options.sessions or options.followers < options.sessions:
        parser.error("1 <= --turns <= --sessions <= --followers")
    if options.minutes <= 0 or options.pieces < 1 or options.pause < 0:
        parser.error("--minutes and --pieces must be more than 0, --pause at least 0")
    if not PYTHON.exists():
        parser.error(f"the stand-in runs in the boxes by {PYTHON}, which is not there")
    installed = found_without_keys(parser)
    load = Load(
        sessions=options.sessions,
        turns=options.turns,
        followers=options.followers,
        seconds=60 * options.minutes,
        pieces=options.pieces,
        pause=options.pause,
        durability=options.durability,
    )
    result = asyncio.run(run(load, installed, Console(stderr=True)))
    if options.json:
        print(json.dumps(result))
    else:
        Console().print(table(result))
    sys.exit(0 if result["ok"] else 1)


if __name__ == "__main__":
    main()
