"""What the sidecar asks of the host that its boxes and mounts live on.

Two answer: `in_process` (the sidecar's own machine, the embedded stack) and `client`, which asks a
service of its own (`python -m sidecar.boxhost serve`), beside a sidecar without any privilege.
Every call of a client may also raise `BoxHostUnavailable`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from contracts.errors import NotDurable
from sidecar.boxhost.boxes import Box, BoxSpec
from sidecar.boxhost.mounts import Mount
from sidecar.boxhost.processes import ProcessId, ProcessInfo

TIMED_OUT = 124


class MountSick(NotDurable):
    """The mounted workspace does not answer as a file system should. `kind` tells how."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message, hint="It will be mounted anew.", kind=kind)
        self.kind = kind


@dataclass(frozen=True)
class BoxCommand:
    """One command to run inside a box."""

    argv: Sequence[str]
    cwd: str
    env: Mapping[str, str] = field(default_factory=dict)
    stdin: bytes = b""
    timeout: float | None = None


@dataclass(frozen=True)
class Ran:
    """How a command ended; 124 after its timeout."""

    exit_code: int
    stdout: bytes
    stderr: bytes


@dataclass(frozen=True)
class MountKey:
    """A key of the store for one session's prefix."""

    access_key: str
    secret_key: str = field(repr=False)


class BoxHost(Protocol):
    """Boxes. Whoever lives is asked of the kernel there, never of a record."""

    async def start(self, spec: BoxSpec) -> Box:
        """A living box with this id: the one that is there, or a new one. Raises: BoxFailed."""
        ...

    async def living(self, box_id: str) -> Box | None: ...

    async def all_living(self) -> list[Box]: ...

    async def kill(self, box_id: str) -> bool:
        """End it and forget it; False if there was no living one. Raises: BoxFailed."""
        ...

    async def exec(self, box: Box, command: BoxCommand) -> Ran:
        """Run to the end; neither a timeout nor a cancellation leaves a process behind.

        Raises: BoxGone, BoxFailed.
        """
        ...

    async def spawn(self, box: Box, command: BoxCommand) -> None:
        """Start and leave running. Raises: BoxGone, BoxFailed."""
        ...

    async def pack(self, box_id: str, kept: Sequence[str], left: Sequence[str]) -> bytes:
        """A tar of directories under HOME. Raises: HomeTooLarge, BoxFailed."""
        ...

    async def processes(self, box: Box) -> list[ProcessInfo]: ...

    async def kill_processes(self, box: Box, found: Sequence[ProcessId]) -> None:
        """SIGKILL those of them that are in the box, and return when they are gone."""
        ...

    async def freeze(self, box: Box) -> None:
        """Raises: BoxGone; BoxFailed, when a process would not stop: then none is."""
        ...

    async def thaw(self, box_id: str) -> None:
        """Idempotent."""
        ...

    async def thaw_all(self) -> int:
        """Let go on what a sidecar froze and did not live to thaw."""
        ...

    def files(self, box: Box) -> Files:
        """The workspace on a box's own disk."""
        ...


class Files(Protocol):
    """Calls into one mounted workspace, each bounded.

    Raises, in every call: MountSick.
    """

    async def call(self, op: str, *, bound: float, **arguments: Any) -> dict[str, Any]:
        """One of walker.py's, in a process that remembers what it saw."""
        ...

    async def mend(self, op: str, *, bound: float, **arguments: Any) -> dict[str, Any]:
        """One of mender.py's, which waits for no other call."""
        ...

    async def edit(self, op: str, *, bound: float, **arguments: Any) -> dict[str, Any]:
        """One of editor.py's, which waits for no other call."""
        ...

    async def held(self) -> set[int]:
        """Inodes that a box can write to by what it holds open or mapped."""
        ...

    async def close(self) -> None: ...


class MountHost(Protocol):
    """Mounts of sessions' workspaces, one each."""

    async def mount(
        self, session_id: str, engine: str, uid: int | None, key: MountKey | None
    ) -> Mount:
        """Mount the session's workspace for `uid`, or for the session's own; whatever served it
        before is ended first.

        Raises: MountFailed.
        """
        ...

    async def get(self, session_id: str) -> Mount | None:
        """The session's mount, living or not."""
        ...

    async def alive(self, mount: Mount) -> bool:
        """Whether its daemon runs and it is in place; not whether it answers."""
        ...

    async def mounted(self) -> set[str]:
        """The sessions that have a living mount."""
        ...

    async def unmount(self, session_id: str, *, gently: bool = True) -> bool:
        """End the mount and prove it; False if there was none. Raises: MountFailed."""
        ...

    async def forget(self, session_id: str) -> bool:
        """Unmount, and remove the session's traces. Raises: MountFailed."""
        ...

    async def fence(self, session_id: str) -> int:
        """End every daemon on the host that serves the session, whoever started it.

        Raises: MountFailed, when one survives.
        """
        ...

    async def name(self) -> str:
        """A name for the host, by which its keys of the store are known."""
        ...

    def files(self, mount: Mount) -> Files: ...


class Host(Protocol):
    """A host of ours. `geesefs` is the binary that it has, if any."""

    @property
    def boxes(self) -> BoxHost: ...
    @property
    def mounts(self) -> MountHost: ...
    @property
    def geesefs(self) -> Path | None: ...
