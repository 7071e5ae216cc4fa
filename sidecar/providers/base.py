"""The provider contract: how to get a sandbox, and what a sandbox can do.

Every call raises errors of `contracts.errors.SandboxError` only. Any data-plane failure is
`Unreachable`; then `status()`, which asks the control plane, decides what is true.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Literal, Protocol

from sidecar.boxhost.contract import Files

HOME = "/home/agent"
SESSION_DIR = "/session"
WORKSPACE = f"{SESSION_DIR}/workspace"  # `/workspace` leads there in every sandbox

TIMED_OUT = 124


class Status(StrEnum):
    RUNNING = "running"
    STOPPED = "stopped"
    SUSPENDED = "suspended"
    GONE = "gone"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Capabilities:
    """What a provider's sandboxes can do, declared so that nothing is found out mid-turn. `uid` is
    whose files a workspace that is mounted on the host shows; None: the session's own."""

    mount: Literal["host", "in_box", "none"]
    suspend: bool = False
    freeze: bool = False
    max_lifetime: float | None = None
    uid: int | None = None


@dataclass(frozen=True)
class Command:
    """One command. `cwd` and `env` hold for this call only."""

    argv: Sequence[str]
    cwd: str = WORKSPACE
    env: Mapping[str, str] = field(default_factory=dict)
    stdin: bytes = b""
    timeout: float | None = 60


@dataclass(frozen=True)
class ExecResult:
    """How a command ended. A non-zero exit is a result, and so is a timeout (124)."""

    exit_code: int
    stdout: bytes = b""
    stderr: bytes = b""


@dataclass(frozen=True)
class SandboxProcess:
    """A process in a sandbox. `token` names it for good; a reused pid has another one. `memory`:
    bytes, 0 where nobody tells."""

    token: str
    pid: int
    argv: tuple[str, ...]
    memory: int = field(default=0, compare=False)


@dataclass(frozen=True)
class Endpoint:
    """How to reach a port of a sandbox with HTTP."""

    base_url: str
    headers: Mapping[str, str] = field(default_factory=dict)
    socket: str | None = None


@dataclass(frozen=True)
class SandboxSpec:
    """A sandbox to be. Two creates with one `key` give one sandbox."""

    key: str
    session_id: str
    labels: Mapping[str, str]
    gateway_socket: Path
    session_dir: Path | None = None


@dataclass(frozen=True)
class SandboxInfo:
    sandbox_id: str
    labels: Mapping[str, str]
    status: Status
    created_at: str


class Sandbox(Protocol):
    """One living sandbox."""

    @property
    def id(self) -> str: ...
    @property
    def labels(self) -> Mapping[str, str]: ...
    @property
    def gateway_url(self) -> str:
        """The model gateway as seen from inside."""
        ...

    @property
    def gateway_token(self) -> str:
        """What names the session there, where the way it comes by does not."""
        ...

    async def exec(self, command: Command) -> ExecResult:
        """Run to the end. A timeout is a result with exit code 124; cancellation by the caller
        raises; neither leaves a process of the command behind.

        Raises: Unreachable.
        """
        ...

    async def spawn(self, command: Command) -> None:
        """Start and leave running; `stdin` and `timeout` have no meaning here.

        Raises: Unreachable.
        """
        ...

    async def read(self, path: str) -> bytes:
        """Raises: FileMissing, Unreachable."""
        ...

    async def write(self, path: str, data: bytes, mode: int = 0o600) -> None:
        """Write a whole file, making its directories; never a half-written one.

        Raises: Unreachable.
        """
        ...

    async def pack(self, kept: Sequence[str], left: Sequence[str]) -> bytes:
        """A tar of directories under HOME without the paths in `left`, also of a frozen sandbox.

        Raises: Unsupported, when it is too large to be carried; Unreachable.
        """
        ...

    async def unpack(self, tar: bytes) -> None:
        """Put the files of a tar under HOME. Raises: Unreachable."""
        ...

    async def processes(self) -> list[SandboxProcess]: ...

    async def kill(self, processes: Sequence[SandboxProcess]) -> None:
        """SIGKILL these, and return when they are gone."""
        ...

    async def held(self) -> set[int]:
        """Inodes of the workspace that a process inside can write to by what it holds open or
        mapped; none where the host that mounts the workspace sees for itself. Raises: Unreachable.
        """
        ...

    async def freeze(self) -> None:
        """Stop every process until `thaw`; when it raises, none is stopped. What is executed in a
        frozen sandbox runs.

        Raises: SandboxGone, Unreachable, Unsupported.
        """
        ...

    async def thaw(self) -> None:
        """Idempotent; a sandbox that is gone has nothing to thaw. Raises: Unreachable."""
        ...

    def endpoint(self, port: int) -> Endpoint:
        """Raises: Unsupported, for a port that cannot be reached."""
        ...

    async def keepalive(self) -> None:
        """Say that it is in use, where a provider ends what is idle or old. Raises: SandboxGone,
        Unreachable."""
        ...


class InBoxSandbox(Sandbox, Protocol):
    """A sandbox whose workspace only it can reach: looked at, mended and mounted inside."""

    def files(self) -> Files:
        """The workspace. `held` of it is what `Sandbox.held` tells."""
        ...

    @property
    def files_owner(self) -> int | None:
        """Whom what is put into the workspace must be given to; None: nobody else."""
        ...

    async def mount(self, argv: Sequence[str], env: Mapping[str, str]) -> None:
        """Have a daemon serve the workspace, in place of any before it.

        Raises: Unsupported, Unreachable.
        """
        ...

    async def unmount(self, *, gently: bool) -> None:
        """Idempotent. Raises: Unreachable."""
        ...

    async def mounted(self) -> bool:
        """Whether its daemon runs and it is in place. Raises: Unreachable."""
        ...


class Provider(Protocol):
    @property
    def name(self) -> str: ...
    @property
    def capabilities(self) -> Capabilities: ...

    async def trouble(self) -> str:
        """Why no sandbox can be had here right now, and what to do; nothing when one can."""
        ...

    async def create(self, spec: SandboxSpec) -> Sandbox:
        """Idempotent by `spec.key`. Raises: InvalidSpec, NoCapacity, QuotaExceeded, Unreachable."""
        ...

    async def attach(self, sandbox_id: str) -> Sandbox:
        """Raises: SandboxGone, Unreachable."""
        ...

    async def status(self, sandbox_id: str) -> Status:
        """What the control plane says. GONE is the only word that allows a rival."""
        ...

    def list(self, labels: Mapping[str, str]) -> AsyncIterator[SandboxInfo]: ...

    async def destroy(self, sandbox_id: str) -> bool:
        """End it, with everything that runs in it; False if it was gone already. Idempotent."""
        ...
