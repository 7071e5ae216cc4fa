"""A stack in miniature that keeps its promises, or breaks one of them, for the matrix to find out.

Commands really run and objects really lie in SeaweedFS; sandboxes are directories.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from uuid import UUID

from client import Store
from client.trials import open_bucket
from contracts import bodies, events
from tests.support.client.wire_server import FakeApi

PROVIDER = "miniature"
KNOWN = bodies.Capabilities(
    harnesses=[bodies.HarnessBody(name="pi", title="pi", can_ask=False)],
    providers=[
        bodies.ProviderBody(name=PROVIDER, title="Miniature", available=True),
        # Its commands run in the PID namespace of the tests, whose processes outlive any kill.
        bodies.ProviderBody(name="local", title="Local", available=True),
        bodies.ProviderBody(name="cloud", title="Cloud", available=False, reason="no key"),
    ],
    default_harness="pi",
    default_provider=PROVIDER,
)


@dataclass
class LyingStack:
    """`lie` names the promise to break; empty for none."""

    api: FakeApi
    store: Store
    home: Path
    lie: str = ""
    boxes: int = 0
    remembered: list[str] = field(default_factory=list)

    def install(self) -> None:
        self.api.capabilities = KNOWN
        self.api.on_turn = self.turn
        self.api.on_kill = self.kill
        self.api.on_delete = self.delete

    async def turn(self, turn: bodies.Turn) -> list[events.Event]:
        if self.lie == "the turn fails":
            error = events.ErrorInfo(code="mount_failed", message="no mount")
            return [events.TurnFailed(error=error)]
        ready = self._sandbox(turn.session_id)
        outputs = [await self._run(line.removeprefix("run: ")) for line in turn.prompt.splitlines()]
        if self.lie == "the answer is remembered" and self.remembered:
            outputs = self.remembered
        if self.lie == "the sandbox is on another host":
            outputs = [re.sub(r"pid:\[\d+\]", "pid:[1]", output) for output in outputs]
        self.remembered = outputs
        await self._keep(turn.session_id)
        said: list[events.Event] = [ready]
        said += [
            events.ToolResult(tool_call_id=str(n), status="completed", output=output)
            for n, output in enumerate(outputs)
        ]
        receipt = events.Receipt(
            engine="weed", files=1, bytes=4096, manifest_sha256="0" * 64, took=0.1
        )
        if self.lie != "there is no receipt":
            said.append(receipt)
        body = bodies.ReceiptBody(
            **receipt.model_dump(include=set(bodies.ReceiptBody.model_fields) - {"seq"}),
            seq=turn.first_seq + 2 + len(outputs),
        )
        listed = None if self.lie == "the turn is listed without its receipt" else body
        self.api.turns[turn.id] = turn.model_copy(update={"receipt": listed})
        return [*said, events.TurnCompleted()]

    def kill(self) -> bodies.Killed:
        box = self.api.sandboxes[0]
        if self.lie != "the sandbox lives on":
            self.api.sandboxes = []
        if self.lie == "the files die with the sandbox":
            shutil.rmtree(self.home)
            self.home.mkdir()
        return bodies.Killed(session_id=box.session_id, killed=True, sandbox_id=box.sandbox_id)

    async def delete(self, session_id: UUID) -> None:
        self.api.sandboxes = []
        if self.lie == "objects are left":
            return
        async with open_bucket(self.store) as bucket:
            await bucket.s3.delete_object(Bucket=bucket.name, Key=f"{session_id}/random.bin")

    def _sandbox(self, session_id: UUID) -> events.SandboxReady:
        if self.lie != "the old sandbox is used":
            self.boxes += 1
        box = bodies.SandboxBody(
            session_id=session_id,
            sandbox_id=f"box-{self.boxes}",
            provider=PROVIDER,
            state="running",
        )
        self.api.sandboxes = [box]
        return events.SandboxReady(provider=PROVIDER, sandbox_id=box.sandbox_id, took=0.1)

    async def _run(self, command: str) -> str:
        process = await asyncio.create_subprocess_exec(
            "/bin/sh",
            "-c",
            command,
            cwd=self.home,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        output, _ = await process.communicate()
        return output.decode()

    async def _keep(self, session_id: UUID) -> None:
        file = self.home / "random.bin"
        content = await asyncio.to_thread(lambda: file.read_bytes() if file.exists() else b"")
        other = hashlib.sha256(content).digest() * (len(content) // 32)
        self.api.files = {"random.bin": other if self.lie == "the api lies" else content}
        self.api.live_files = {"random.bin": other if self.lie == "the view lies" else content}
        stored = other if self.lie == "the object differs" else content
        # A client of its own: this runs in the server's loop.
        async with open_bucket(self.store) as bucket:
            key = f"{session_id}/random.bin"
            await bucket.s3.put_object(Bucket=bucket.name, Key=key, Body=stored)
