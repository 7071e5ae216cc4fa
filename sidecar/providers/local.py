"""The local provider: a bubblewrap box per session on this host."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence

from contracts.errors import (
    BoxHostUnavailable,
    FileMissing,
    SandboxGone,
    Unreachable,
    Unsupported,
)
from sidecar.boxhost.boxes import AGENT_PORT, GATEWAY_PORT, Box, BoxFailed, BoxGone, BoxSpec
from sidecar.boxhost.contract import BoxCommand, BoxHost, Files
from sidecar.boxhost.home import HomeTooLarge
from sidecar.boxhost.processes import ProcessId
from sidecar.providers.base import (
    HOME,
    Capabilities,
    Command,
    Endpoint,
    ExecResult,
    SandboxInfo,
    SandboxProcess,
    SandboxSpec,
    Status,
)

# Constant texts: paths come as arguments.
WRITE_SCRIPT = """
set -e
mkdir -p "$(dirname "$1")"
umask 077
cat > "$1.holdfast-new"
chmod "$2" "$1.holdfast-new"
mv -f "$1.holdfast-new" "$1"
"""


@contextlib.contextmanager
def _host_errors(op: str, what: str, hint: str = "") -> Iterator[None]:
    """What the host of the boxes raises, as the provider contract has it."""
    try:
        yield
    except BoxHostUnavailable as error:
        raise Unreachable(error.message, op=op, hint=error.hint) from error
    except BoxFailed as error:
        raise Unreachable(f"{what}: {error}", op=op, hint=hint) from error


class LocalProvider:
    """Boxes on a host of ours."""

    name = "local"
    capabilities = Capabilities(mount="host", freeze=True)

    def __init__(self, host: BoxHost) -> None:
        self._host = host

    async def trouble(self) -> str:
        return ""

    async def create(self, spec: SandboxSpec) -> LocalSandbox:
        wanted = BoxSpec(
            id=spec.key,
            session_id=spec.session_id,
            labels=spec.labels,
            session_dir=spec.session_dir,
            gateway_socket=spec.gateway_socket,
        )
        doctor = "`holdfast doctor` checks bubblewrap and user namespaces."
        with _host_errors("create", "the local sandbox did not start", hint=doctor):
            return LocalSandbox(self._host, await self._host.start(wanted))

    async def attach(self, sandbox_id: str) -> LocalSandbox:
        with _host_errors("attach", "the local sandbox cannot be looked for"):
            box = await self._host.living(sandbox_id)
            if box is not None:
                await self._host.thaw(sandbox_id)  # what froze it may have died, or not got through
        if box is None:
            raise SandboxGone(f"the local sandbox {sandbox_id} is gone", op="attach")
        return LocalSandbox(self._host, box)

    async def status(self, sandbox_id: str) -> Status:
        try:
            box = await self._host.living(sandbox_id)
        except BoxHostUnavailable:
            return Status.UNKNOWN
        return Status.RUNNING if box is not None else Status.GONE

    async def list(self, labels: Mapping[str, str]) -> AsyncIterator[SandboxInfo]:
        with _host_errors("list", "the local sandboxes cannot be listed"):
            found = await self._host.all_living()
        for box in found:
            if labels.items() <= box.labels.items():
                yield SandboxInfo(box.id, box.labels, Status.RUNNING, box.created_at)

    async def destroy(self, sandbox_id: str) -> bool:
        with _host_errors("destroy", "the local sandbox cannot be ended"):
            return await self._host.kill(sandbox_id)


class LocalSandbox:
    """One box. Files are read and written by its own user inside it, so that a link planted there
    leads nowhere else."""

    gateway_url = f"http://127.0.0.1:{GATEWAY_PORT}"
    gateway_token = "by-socket"  # noqa: S105 - no secret: its socket tells who it is

    def __init__(self, host: BoxHost, box: Box) -> None:
        self._host = host
        self._box = box

    @property
    def id(self) -> str:
        return self._box.id

    @property
    def labels(self) -> Mapping[str, str]:
        return self._box.labels

    async def exec(self, command: Command) -> ExecResult:
        with _host_errors("exec", "the command cannot be run, or not be ended"):
            ran = await self._host.exec(self._box, _in_box(command))
        return ExecResult(ran.exit_code, ran.stdout, ran.stderr)

    async def spawn(self, command: Command) -> None:
        with _host_errors("spawn", "the command cannot be started"):
            await self._host.spawn(self._box, _in_box(command))

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
        try:
            with _host_errors("pack", "the state cannot be packed"):
                return await self._host.pack(self.id, kept, left)
        except HomeTooLarge as error:
            raise Unsupported(str(error), op="pack") from error

    async def unpack(self, tar: bytes) -> None:
        command = ["tar", "-x", "-f", "-", "-C", HOME, "--no-same-owner"]
        result = await self.exec(Command(command, cwd="/", stdin=tar))
        if result.exit_code != 0:
            said = result.stderr.decode("utf-8", "replace").strip()
            raise Unreachable(f"the state cannot be unpacked: {said}", op="unpack")

    async def processes(self) -> list[SandboxProcess]:
        with _host_errors("processes", "what runs in the sandbox cannot be seen"):
            found = await self._host.processes(self._box)
        return [
            SandboxProcess(f"{p.id.pid}:{p.id.started}", p.inner_pid, (*p.argv, p.exe), p.memory)
            for p in found
        ]

    async def kill(self, processes: Sequence[SandboxProcess]) -> None:
        identities = [ProcessId(*map(int, p.token.split(":"))) for p in processes]
        with _host_errors("kill", "the processes cannot be ended"):
            await self._host.kill_processes(self._box, identities)

    async def held(self) -> set[int]:
        return set()

    def files(self) -> Files:
        return self._host.files(self._box)

    @property
    def files_owner(self) -> int | None:
        return self._box.uid

    async def mount(self, argv: Sequence[str], env: Mapping[str, str]) -> None:
        raise Unsupported("nothing can be mounted inside a local sandbox", op="mount")

    async def unmount(self, *, gently: bool) -> None:
        """Nothing is ever mounted inside."""

    async def mounted(self) -> bool:
        return False

    async def freeze(self) -> None:
        with _host_errors("freeze", "the sandbox cannot be frozen"):
            try:
                await self._host.freeze(self._box)
            except BoxGone as error:
                gone = f"the local sandbox {self.id} is gone"
                raise SandboxGone(gone, op="freeze") from error

    async def thaw(self) -> None:
        with _host_errors("thaw", "the sandbox cannot be thawed"):
            await self._host.thaw(self.id)

    async def keepalive(self) -> None:
        """A box is ended by us alone."""

    def endpoint(self, port: int) -> Endpoint:
        if port != AGENT_PORT:
            raise Unsupported(f"port {port} is not carried out of a local sandbox", op="endpoint")
        return Endpoint("http://sandbox", socket=self._box.agent_socket)


def _in_box(command: Command) -> BoxCommand:
    return BoxCommand(command.argv, command.cwd, command.env, command.stdin, command.timeout)
