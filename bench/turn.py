"""A warm turn through the whole stack, beside the same harness driven directly over ACP.

    uv run python -m bench.turn [--harnesses claude,pi] [--rounds 8] [--answer 0] [--json]

Starts an embedded stack of its own. Both sides run the same adapter from the same tree with the
same settings, ask the same scripted model through the same gateway and get the same prompts; the
direct one talks over stdio and works in a plain directory: no box, mount, receipt or transcript.
They take turns, so that whatever else the machine does hits both of them.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, NamedTuple, cast
from uuid import uuid4

import acp
from acp import schema
from acp.client.connection import ClientSideConnection
from rich.console import Console
from rich.table import Table

from client import Holdfast
from contracts.bodies import Session
from sidecar.boxhost import processes
from sidecar.harnesses import agent_server
from sidecar.harnesses.acp import AcpConnection
from sidecar.harnesses.base import Choice, Harness
from sidecar.harnesses.registry import HARNESSES
from sidecar.runs.gateway import Gateway
from stack.embedded.layout import Layout
from stack.install.everything import Installed, find_everything
from stack.settings import load_settings
from tests.services import free_port, short_directory

GOAL = 1.25
WARM_UP = 2
COMMAND_SECONDS = 180
START_SECONDS = 90
TURN_SECONDS = 120
KILL_SECONDS = 10
# Harnesses tidy up after their answer; the other side's turn should not pay for it.
SETTLE_SECONDS = 0.2
LINE_BYTES = 64 << 20  # asyncio's own limit is 64 KiB
CHUNK = 64 << 10
HOLDFAST = str(Path(sys.executable).with_name("holdfast"))
# As sandbox-agent starts them.
ADAPTERS = {
    "claude": ("claude-agent-acp",),
    "codex": ("codex-acp",),
    "opencode": ("opencode", "acp"),
    "pi": ("pi-acp",),
}
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


class Direct:
    """A harness over stdio, in a plain directory."""

    def __init__(self, workspace: Path, process: asyncio.subprocess.Process) -> None:
        self.workspace = workspace
        self.tool_calls = 0
        self.session = ""
        self.connection = ClientSideConnection(
            cast(acp.Client, self), process.stdin, process.stdout
        )

    async def open(self, harness: Harness) -> None:
        await self.connection.initialize(protocol_version=acp.PROTOCOL_VERSION)
        opened = await self.connection.new_session(cwd=str(self.workspace))
        self.session = opened.session_id
        # By the sidecar's own code, so that the mode is the same on both sides.
        await harness.configure(cast(AcpConnection, self), {}, Choice())

    async def set_mode(self, mode: str) -> None:
        await self.connection.set_session_mode(session_id=self.session, mode_id=mode)

    async def session_update(self, update: object, **_: Any) -> None:
        self.tool_calls += isinstance(update, schema.ToolCallStart)

    async def request_permission(self, **_: Any) -> schema.RequestPermissionResponse:
        raise acp.RequestError.internal_error({"reason": "a harness of this bench must not ask"})

    async def turn(self, task: Task, measured: Measured) -> None:
        self.tool_calls = 0
        started = time.perf_counter()
        async with asyncio.timeout(TURN_SECONDS):
            await self.connection.prompt(
                session_id=self.session, prompt=[acp.text_block(task.prompt)]
            )
        measured["direct"].append(1000 * (time.perf_counter() - started))
        assert self.tool_calls >= 3, f"{self.tool_calls} tool calls"
        assert (self.workspace / task.file).read_text().strip() == task.text


@contextlib.asynccontextmanager
async def direct(
    harness: Harness, installed: Installed, gateway: str, place: Path
) -> AsyncIterator[Direct]:
    home, workspace, tmp = place / "home", place / "workspace", place / "tmp"
    for directory in (home, workspace, tmp):
        directory.mkdir(parents=True)
    for path, text in harness.home(gateway, Choice()).items():
        (home / path).parent.mkdir(parents=True, exist_ok=True)
        (home / path).write_text(text)
    program, *arguments = ADAPTERS[harness.name]
    programs = installed.tree.path / "bin"
    mark, value = "HOLDFAST_BENCH", uuid4().hex
    process = await asyncio.create_subprocess_exec(
        str(programs / program),
        *arguments,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        limit=LINE_BYTES,
        cwd=workspace,
        start_new_session=True,
        env={
            **agent_server.ENVIRONMENT,
            **{k: v for each in HARNESSES.values() for k, v in each.env(gateway).items()},
            "PATH": f"{programs}:{installed.node.path.parent}:/usr/bin:/bin",
            "HOME": str(home),
            "TMPDIR": str(tmp),
            mark: value,
        },
    )
    side = Direct(workspace, process)
    try:
        async with asyncio.timeout(START_SECONDS):
            await side.open(harness)
        yield side
    finally:
        async with asyncio.timeout(KILL_SECONDS):
            await kill_marked(f"{mark}={value}".encode())
            await process.wait()
        await side.connection.close()


async def kill_marked(mark: bytes) -> None:
    """Everything that was started with the mark in its environment, also what left its group."""
    here = Path("/proc/self/ns/pid").stat().st_ino
    while found := [
        process.id
        for process in processes.in_pid_namespace(here)
        if processes.environment_has(process.id, mark)
    ]:
        for process in found:
            processes.kill(process)
        await asyncio.sleep(0.01)


@contextlib.asynccontextmanager
async def model(control: Path) -> AsyncIterator[str]:
    """The stack's own gateway on a loopback port, as a box has it."""
    gateway, session = Gateway(control), str(uuid4())

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(CHUNK):
                writer.write(data)
                await writer.drain()
        writer.close()

    async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_unix_connection(socket)
        async with asyncio.TaskGroup() as both:
            both.create_task(pump(reader, far_writer))
            both.create_task(pump(far_reader, writer))

    async with contextlib.aclosing(gateway):
        socket = await gateway.open(session)
        server = await asyncio.start_server(carry, "127.0.0.1", 0)
        try:
            yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        finally:
            server.close()
            await gateway.close_session(session)


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
                    await side.turn(task, into)
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


async def command(env: dict[str, str], *arguments: str) -> None:
    done = await asyncio.to_thread(
        subprocess.run,
        [HOLDFAST, *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=env,
        timeout=COMMAND_SECONDS,
        start_new_session=True,  # Ctrl-C is for the bench, which then stops the stack
        check=False,
    )
    if done.returncode != 0:
        raise RuntimeError(f"holdfast {' '.join(arguments)} failed:\n{done.stdout.decode()}")


@contextlib.asynccontextmanager
async def embedded_stack(layout: Layout) -> AsyncIterator[Holdfast]:
    env = {
        **os.environ,
        "HOLDFAST_DATA_DIR": str(layout.data),
        "HOLDFAST_RUN_DIR": str(layout.run),
        "HOLDFAST_API_PORT": str(free_port()),
        "HOLDFAST_OFFLINE": "1",
    }
    up = asyncio.ensure_future(command(env, "up", "--detach"))
    try:
        await asyncio.shield(up)
        url = json.loads(layout.api.read_text())["url"]
        async with Holdfast(url, layout.token.read_text().strip()) as hf:
            yield hf
    finally:
        await asyncio.wait({up})  # a stack that is half up cannot be taken down
        await command(env, "down")
    assert str(layout.data) not in Path("/proc/mounts").read_text(), "a mount was left behind"


async def run(
    harnesses: list[str], tasks: list[Task], installed: Installed, progress: Console
) -> dict[str, Any]:
    this = asyncio.current_task()
    assert this is not None
    # As Ctrl-C does: the stack must not outlive us.
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, this.cancel)
    rows = []
    with short_directory() as place:
        layout = Layout(place / "data", place / "run")
        progress.print("starting a stack")
        async with embedded_stack(layout) as hf, model(layout.gateway_control) as gateway:
            engine = (await hf.capabilities()).providers[0].engine
            for name in harnesses:
                progress.print(f"{name}: {len(tasks)} rounds, of which {WARM_UP} to warm up")
                async with direct(HARNESSES[name], installed, gateway, place / name) as side:
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
        "--answer", type=float, default=0, help="seconds that the model takes over its answer"
    )
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    harnesses = options.harnesses.split(",")
    if unknown := set(harnesses) - set(HARNESSES):
        parser.error(f"there is no harness {', '.join(sorted(unknown))}")
    if options.rounds < 1 or not 0 <= options.answer < TURN_SECONDS / 2:
        parser.error("--rounds must be at least 1, --answer at least 0 and less than a minute")
    os.environ |= {"ANTHROPIC_API_KEY": "", "OPENAI_API_KEY": ""}
    settings = load_settings()
    if settings.anthropic_api_key or settings.openai_api_key:
        parser.error("take the keys out of .env: this bench is for the scripted model")
    tasks = [make_task(number, options.answer) for number in range(WARM_UP + options.rounds)]
    progress = Console(stderr=True)
    result = asyncio.run(run(harnesses, tasks, find_everything(settings), progress))
    result["answer_s"] = options.answer
    if options.json:
        print(json.dumps(result))
    else:
        Console().print(table(result))


if __name__ == "__main__":
    main()
