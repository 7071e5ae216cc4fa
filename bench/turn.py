"""A warm turn through the whole stack, beside the same harness driven directly over ACP.

    uv run python -m bench.turn [--harnesses claude,pi] [--rounds 8] [--json]

Starts an embedded stack of its own. Both sides run the same adapter from the same tree with the
same settings, ask the same scripted model through the same gateway and get the same prompts; the
direct one talks over stdio and works in a plain directory, with no box, mount, receipt or
transcript. They take turns, so that whatever else the machine does hits both of them.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import dataclasses
import json
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast
from uuid import UUID, uuid4

import acp
from acp import schema
from acp.client.connection import ClientSideConnection
from rich.console import Console
from rich.table import Table
from tests.services import free_port, short_directory

from client import Holdfast
from contracts.bodies import Session
from contracts.events import Event
from sidecar.boxhost import processes
from sidecar.harnesses import agent_server
from sidecar.harnesses.acp import AcpConnection
from sidecar.harnesses.base import Choice, Harness
from sidecar.harnesses.registry import HARNESSES
from sidecar.runs.gateway import Gateway
from stack.embedded.layout import Layout
from stack.install.everything import Installed, find_everything
from stack.settings import load_settings

GOAL = 1.25
WARM_UP = 2
COMMAND_SECONDS = 180
START_SECONDS = 90
TURN_SECONDS = 120
# Harnesses tidy up after their answer; the other side's turn should not pay for it.
SETTLE_SECONDS = 0.2
LINE_BYTES = 64 << 20
CHUNK = 64 << 10
HOLDFAST = str(Path(sys.executable).with_name("holdfast"))
# As sandbox-agent starts them.
ADAPTERS = {
    "claude": ("claude-agent-acp",),
    "codex": ("codex-acp",),
    "opencode": ("opencode", "acp"),
    "pi": ("pi-acp",),
}


@dataclass(frozen=True)
class Task:
    """One round's turn: four model requests, three tool calls."""

    number: int

    @property
    def file(self) -> str:
        return f"notes-{self.number}.txt"

    @property
    def text(self) -> str:
        return f"what round {self.number} of the bench has to say"

    @property
    def prompt(self) -> str:
        return (
            f"write {self.text} to {self.file}\nrun: wc -c {self.file} && ls -l\nread {self.file}"
        )


@dataclass
class Measured:
    """Milliseconds of every round of one harness; the stack's also by what they went into."""

    harness: str
    direct: list[float] = field(default_factory=list)
    stack: list[float] = field(default_factory=list)
    opening: list[float] = field(default_factory=list)
    agent: list[float] = field(default_factory=list)
    barrier: list[float] = field(default_factory=list)
    delivery: list[float] = field(default_factory=list)

    def add_stack(self, posted: float, arrived: float, events: list[Event]) -> None:
        """`posted` and `arrived` are times of the clock that the events' `at` is from."""
        resume = next(event for event in events if event.type == "resume")
        receipt = next(event for event in events if event.type == "receipt")
        ready, proven = resume.at.timestamp(), receipt.at.timestamp()
        answered = proven - receipt.took
        self.stack.append(1000 * (arrived - posted))
        self.opening.append(1000 * (ready - posted))
        self.agent.append(1000 * (answered - ready))
        self.barrier.append(1000 * receipt.took)
        self.delivery.append(1000 * (arrived - proven))

    def row(self) -> dict[str, Any]:
        lists = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)[1:]}
        medians = {name: round(statistics.median(all_), 1) for name, all_ in lists.items()}
        ratio = round(medians["stack"] / medians["direct"], 2)
        return {
            "harness": self.harness,
            "ratio": ratio,
            "within_goal": ratio <= GOAL,
            **{f"{name}_ms": median for name, median in medians.items()},
            "rounds": {name: [round(ms, 1) for ms in all_] for name, all_ in lists.items()},
        }


class Listening(acp.Client):
    """The client's end of a direct connection: hears everything, and is asked for nothing."""

    def __init__(self) -> None:
        self.tool_calls = 0

    async def session_update(self, session_id: str, update: object, **_: Any) -> None:
        self.tool_calls += isinstance(update, schema.ToolCallStart)

    async def request_permission(self, *_: Any, **__: Any) -> schema.RequestPermissionResponse:
        raise acp.RequestError.internal_error({"reason": "the bench's harness must not ask"})


@dataclass
class Direct:
    """A harness over stdio, in a plain directory."""

    connection: ClientSideConnection
    listening: Listening
    workspace: Path
    session: str = ""

    async def open(self, harness: Harness) -> None:
        await self.connection.initialize(protocol_version=acp.PROTOCOL_VERSION)
        opened = await self.connection.new_session(cwd=str(self.workspace))
        self.session = opened.session_id
        # The sidecar's own words, so that the mode is the same on both sides.
        await harness.configure(cast(AcpConnection, self), {}, Choice())

    async def set_mode(self, mode: str) -> None:
        await self.connection.set_session_mode(session_id=self.session, mode_id=mode)

    async def turn(self, task: Task) -> float:
        """Milliseconds from the prompt to its answer."""
        self.listening.tool_calls = 0
        started = time.perf_counter()
        async with asyncio.timeout(TURN_SECONDS):
            await self.connection.prompt([acp.text_block(task.prompt)], session_id=self.session)
        took = 1000 * (time.perf_counter() - started)
        assert self.listening.tool_calls >= 3, f"{self.listening.tool_calls} tool calls"
        assert (self.workspace / task.file).read_text().strip() == task.text
        return took


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
    mark = ("HOLDFAST_BENCH", uuid4().hex)
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
            mark[0]: mark[1],
        },
    )
    listening = Listening()
    connection = ClientSideConnection(listening, process.stdin, process.stdout)
    try:
        side = Direct(connection, listening, workspace)
        async with asyncio.timeout(START_SECONDS):
            await side.open(harness)
        yield side
    finally:
        kill_marked("=".join(mark).encode())
        await process.wait()
        await connection.close()


def kill_marked(mark: bytes) -> None:
    """Whatever a harness left behind carries the mark in its environment."""
    here = Path("/proc/self/ns/pid").stat().st_ino
    while found := [
        process.id
        for process in processes.in_pid_namespace(here)
        if processes.environment_has(process.id, mark)
    ]:
        for process in found:
            processes.kill(process, signal.SIGKILL)


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


async def stack_turn(hf: Holdfast, session: Session, task: Task, measured: Measured) -> None:
    posted = time.time()
    async with asyncio.timeout(TURN_SECONDS):
        events = [event async for event in hf.turns.run(session.id, task.prompt)]
    arrived = time.time()
    assert events[-1].type == "turn.completed", events[-1]
    assert sum(event.type == "tool.call" for event in events) >= 3
    stored = b"".join([chunk async for chunk in hf.files.read(session.id, task.file)])
    assert stored.decode().strip() == task.text
    measured.add_stack(posted, arrived, events)


async def measure(hf: Holdfast, side: Direct, harness: str, rounds: int) -> Measured:
    session = await hf.sessions.create(harness=harness, provider="local", permissions="auto")
    try:
        warming, measured = Measured(harness), Measured(harness)
        for number in range(WARM_UP + rounds):
            into = measured if number >= WARM_UP else warming
            for direct_now in (number % 2 == 0, number % 2 == 1):
                if direct_now:
                    into.direct.append(await side.turn(Task(number)))
                else:
                    await stack_turn(hf, session, Task(number), into)
                await asyncio.sleep(SETTLE_SECONDS)
    finally:
        await hf.sessions.delete(session.id)
    return measured
