"""A harness driven directly over ACP on stdio, in plain directories: what a bench compares with."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast
from uuid import uuid4

import acp
from acp import schema
from acp.client.connection import ClientSideConnection

from sidecar.boxhost import processes
from sidecar.harnesses import agent_server
from sidecar.harnesses.acp import AcpConnection
from sidecar.harnesses.base import Choice, Harness
from sidecar.harnesses.registry import HARNESSES
from stack.install.everything import Installed

START_SECONDS = 90
TURN_SECONDS = 120
KILL_SECONDS = 10
LINE_BYTES = 64 << 20  # asyncio's own limit is 64 KiB
# As sandbox-agent starts them.
ADAPTERS = {
    "claude": ("claude-agent-acp",),
    "codex": ("codex-acp",),
    "opencode": ("opencode", "acp"),
    "pi": ("pi-acp",),
}
# What a user sees of a turn; `message`, `thought` and `tool.call` in a transcript.
SPOKEN = (schema.AgentMessageChunk, schema.AgentThoughtChunk, schema.ToolCallStart)


class Direct:
    """A harness that has been started and talks over stdio."""

    def __init__(
        self, harness: Harness, workspace: Path, process: asyncio.subprocess.Process
    ) -> None:
        self.workspace = workspace
        self.session = ""
        self.tool_calls = 0
        self.spoke: float | None = None
        self._harness = harness
        self.connection = ClientSideConnection(
            cast(acp.Client, self), process.stdin, process.stdout
        )

    async def new_session(self) -> None:
        async with asyncio.timeout(START_SECONDS):
            opened = await self.connection.new_session(cwd=str(self.workspace))
            self.session = opened.session_id
            await self._configure()

    async def load_session(self, session: str) -> None:
        async with asyncio.timeout(START_SECONDS):
            await self.connection.load_session(cwd=str(self.workspace), session_id=session)
            self.session = session
            await self._configure()

    async def _configure(self) -> None:
        # By the sidecar's own code, so that the mode is the same on both sides.
        await self._harness.configure(cast(AcpConnection, self), {}, Choice())

    async def set_mode(self, mode: str) -> None:
        await self.connection.set_session_mode(session_id=self.session, mode_id=mode)

    async def session_update(self, update: object, **_: Any) -> None:
        self.tool_calls += isinstance(update, schema.ToolCallStart)
        if self.spoke is None and isinstance(update, SPOKEN):
            self.spoke = time.perf_counter()

    async def request_permission(self, **_: Any) -> schema.RequestPermissionResponse:
        raise acp.RequestError.internal_error({"reason": "a harness of this bench must not ask"})

    async def prompt(self, text: str) -> None:
        """A turn, to its end; `spoke` and `tool_calls` are about it from now on."""
        self.tool_calls, self.spoke = 0, None
        async with asyncio.timeout(TURN_SECONDS):
            await self.connection.prompt(session_id=self.session, prompt=[acp.text_block(text)])


@dataclass(frozen=True)
class Bare:
    """A harness as it is without the stack, and the directories that it lives in. Adapter,
    settings and model are those that it has in a box."""

    harness: Harness
    installed: Installed
    gateway: str
    place: Path

    def prepare(self) -> None:
        """Make the directories, with the harness's settings in its HOME."""
        for name in ("home", "workspace", "tmp"):
            (self.place / name).mkdir(parents=True)
        for path, text in self.harness.home(self.gateway, Choice()).items():
            file = self.place / "home" / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)

    @contextlib.asynccontextmanager
    async def start(self) -> AsyncIterator[Direct]:
        """The adapter, started and initialized; at the end all of it is killed."""
        mark, value = "HOLDFAST_BENCH", uuid4().hex
        program, *arguments = ADAPTERS[self.harness.name]
        process = await asyncio.create_subprocess_exec(
            str(self.installed.tree.path / "bin" / program),
            *arguments,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            limit=LINE_BYTES,
            cwd=self.place / "workspace",
            start_new_session=True,
            env={**self._environment(), mark: value},
        )
        side = Direct(self.harness, self.place / "workspace", process)
        try:
            async with asyncio.timeout(START_SECONDS):
                await side.connection.initialize(protocol_version=acp.PROTOCOL_VERSION)
            yield side
        finally:
            async with asyncio.timeout(KILL_SECONDS):
                await _kill_marked(f"{mark}={value}".encode())
                await process.wait()
            await side.connection.close()

    def _environment(self) -> dict[str, str]:
        programs = self.installed.tree.path / "bin"
        return {
            **agent_server.ENVIRONMENT,
            **{
                k: v
                for each in HARNESSES.values()
                for k, v in each.env(self.gateway, "bench").items()
            },
            "PATH": f"{programs}:{self.installed.node.path.parent}:/usr/bin:/bin",
            "HOME": str(self.place / "home"),
            "TMPDIR": str(self.place / "tmp"),
        }


async def _kill_marked(mark: bytes) -> None:
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
