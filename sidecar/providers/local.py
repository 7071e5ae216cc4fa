"""The local provider: a bubblewrap box per session on this host."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path

from contracts.errors import FileMissing, InvalidSpec, SandboxGone, Unreachable, Unsupported
from sidecar.boxhost import boxes as boxhost
from sidecar.boxhost import home, processes
from sidecar.boxhost.boxes import Box, Boxes, BoxSpec
from sidecar.boxhost.processes import ProcessId
from sidecar.providers.base import (
    HOME,
    TIMED_OUT,
    Capabilities,
    Command,
    Endpoint,
    ExecResult,
    SandboxInfo,
    SandboxProcess,
    SandboxSpec,
    Status,
)
from sidecar.tasks import background

KILL_SECONDS = 10
MOST_PACKED_BYTES = 512 << 20
NO_BOX = 125  # what enter.py answers when the box is not there to enter

# Constant texts: paths come as arguments.
WRITE_SCRIPT = """
set -e
mkdir -p "$(dirname "$1")"
umask 077
cat > "$1.holdfast-new"
chmod "$2" "$1.holdfast-new"
mv -f "$1.holdfast-new" "$1"
"""


class LocalProvider:
    """Boxes on this host. What they share with it, read-only, is given by `read_only`."""

    name = "local"
    capabilities = Capabilities(mount="host", freeze=True)

    def __init__(self, boxes: Boxes, read_only: Mapping[str, Path]) -> None:
        self._boxes = boxes
        self._read_only = read_only

    async def create(self, spec: SandboxSpec) -> LocalSandbox:
        if spec.session_dir is None:
            raise InvalidSpec("a local sandbox needs a session directory", op="create")
        try:
            box = await self._boxes.start(
                BoxSpec(
                    id=spec.key,
                    session_id=spec.session_id,
                    labels=spec.labels,
                    session_dir=spec.session_dir,
                    gateway_socket=spec.gateway_socket,
                    read_only=self._read_only,
                )
            )
        except boxhost.BoxFailed as error:
            raise Unreachable(
                f"the local sandbox did not start: {error}",
                op="create",
                hint="`holdfast doctor` checks bubblewrap and user namespaces.",
            ) from error
        return LocalSandbox(self._boxes, box)

    async def attach(self, sandbox_id: str) -> LocalSandbox:
        box = self._boxes.get(sandbox_id)
        if box is None or not box.alive():
            raise SandboxGone(f"the local sandbox {sandbox_id} is gone", op="attach")
        return LocalSandbox(self._boxes, box)

    async def status(self, sandbox_id: str) -> Status:
        box = self._boxes.get(sandbox_id)
        return Status.RUNNING if box is not None and box.alive() else Status.GONE

    async def list(self, labels: Mapping[str, str]) -> AsyncIterator[SandboxInfo]:
        for box in self._boxes.all():
            if box.alive() and labels.items() <= box.labels.items():
                yield SandboxInfo(box.id, box.labels, Status.RUNNING, box.created_at)

    async def destroy(self, sandbox_id: str) -> bool:
        try:
            return await self._boxes.kill(sandbox_id)
        except boxhost.BoxFailed as error:
            raise Unreachable(str(error), op="destroy") from error


class LocalSandbox:
    """One box. Files are read and written by its own user inside it, so that a link planted there
    leads nowhere else."""

    gateway_url = f"http://127.0.0.1:{boxhost.GATEWAY_PORT}"

    def __init__(self, boxes: Boxes, box: Box) -> None:
        self._boxes = boxes
        self._box = box

    @property
    def id(self) -> str:
        return self._box.id

    @property
    def labels(self) -> Mapping[str, str]:
        return self._box.labels

    async def exec(self, command: Command) -> ExecResult:
        try:
            exit_code, output = await self._run(command)
        except boxhost.BoxFailed as error:
            raise Unreachable(f"a command cannot be ended: {error}", op="exec") from error
        if exit_code == NO_BOX and not self._box.alive():
            raise Unreachable(f"the sandbox {self.id} cannot be entered", op="exec")
        return ExecResult(exit_code, *output)

    async def _run(self, command: Command) -> tuple[int, tuple[bytes, bytes]]:
        async with self._boxes.marked(self._box) as (name, value):
            process = await self._enter(command, {name: value}, detached=False)
            entered = processes.identify(process.pid)
            try:
                async with background() as tasks:
                    output = tasks.start(process.communicate(command.stdin))
                    ended = await processes.wait_pid(process.pid, command.timeout)
                    if not ended and entered is not None:
                        processes.kill(entered)
                    # What the command left in the background holds its pipes open.
                    await self._boxes.kill_marked(self._box, name, value)
                    collected: tuple[bytes, bytes] = await output
            finally:
                if entered is not None:  # not process.kill(): it reaps, behind asyncio's back
                    processes.kill(entered)
        return process.returncode or 0 if ended else TIMED_OUT, collected

    async def spawn(self, command: Command) -> None:
        process = await self._enter(command, {}, detached=True)
        code = await process.wait()
        if code != 0:
            raise Unreachable(f"the sandbox {self.id} cannot be entered", op="spawn")

    async def read(self, path: str) -> bytes:
        result = await self.exec(Command(["cat", "--", path], cwd="/"))
        if result.exit_code != 0:
            said = result.stderr.decode("utf-8", "replace").strip()
            raise FileMissing(f"{path} cannot be read: {said}", op="read")
        return result.stdout

    async def write(self, path: str, data: bytes, mode: int = 0o600) -> None:
        script = ["sh", "-c", WRITE_SCRIPT, "sh", path, f"{mode:o}"]
        result = await self.exec(Command(script, cwd="/", stdin=data))
        if result.exit_code != 0:
            said = result.stderr.decode("utf-8", "replace").strip()
            raise Unreachable(f"{path} cannot be written: {said}", op="write")

    async def pack(self, kept: Sequence[str], left: Sequence[str]) -> bytes:
        place = self._boxes.home(self.id)
        try:
            return await asyncio.to_thread(home.pack, place, kept, left, MOST_PACKED_BYTES)
        except home.HomeTooLarge as error:
            raise Unsupported(str(error), op="pack") from error
        except OSError as error:
            raise Unreachable(f"HOME cannot be read: {error}", op="pack") from error

    async def unpack(self, tar: bytes) -> None:
        command = ["tar", "-x", "-f", "-", "-C", HOME, "--no-same-owner"]
        result = await self.exec(Command(command, cwd="/", stdin=tar))
        if result.exit_code != 0:
            said = result.stderr.decode("utf-8", "replace").strip()
            raise Unreachable(f"the state cannot be unpacked: {said}", op="unpack")

    async def processes(self) -> list[SandboxProcess]:
        found = await asyncio.to_thread(self._boxes.processes, self._box)
        return [
            SandboxProcess(f"{p.id.pid}:{p.id.started}", p.inner_pid, (*p.argv, p.exe))
            for p in found
        ]

    async def kill(self, processes_: Sequence[SandboxProcess]) -> None:
        identities = [ProcessId(*map(int, p.token.split(":"))) for p in processes_]
        for process in identities:
            processes.kill(process)
        for process in identities:
            await processes.wait_gone(process, KILL_SECONDS)

    async def freeze(self) -> None:
        if not self._box.alive():
            raise SandboxGone(f"the local sandbox {self.id} is gone", op="freeze")
        try:
            await self._boxes.freeze(self._box)
        except boxhost.BoxFailed as error:
            if not self._box.alive():
                raise SandboxGone(f"the local sandbox {self.id} is gone", op="freeze") from error
            raise Unreachable(f"the sandbox cannot be frozen: {error}", op="freeze") from error

    async def thaw(self) -> None:
        self._boxes.thaw(self.id)

    def endpoint(self, port: int) -> Endpoint:
        if port != boxhost.AGENT_PORT:
            raise Unsupported(f"port {port} is not carried out of a local sandbox", op="endpoint")
        return Endpoint("http://sandbox", socket=self._box.agent_socket)

    async def _enter(
        self, command: Command, extra: Mapping[str, str], *, detached: bool
    ) -> asyncio.subprocess.Process:
        if not self._box.alive():
            raise Unreachable(f"the sandbox {self.id} does not run", op="exec")
        pipe = asyncio.subprocess.DEVNULL if detached else asyncio.subprocess.PIPE
        environment = {"PATH": "/usr/bin:/bin", "HOME": boxhost.HOME, "LANG": "C.UTF-8"}
        return await asyncio.create_subprocess_exec(
            *self._boxes.entering(self._box, command.argv, command.cwd, detached=detached),
            stdin=pipe,
            stdout=pipe,
            stderr=pipe,
            env={**environment, **command.env, **extra},
            start_new_session=True,
        )
