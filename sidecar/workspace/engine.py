"""What is the same for every engine: probe, barrier, and a sandbox with its workspace."""

from __future__ import annotations

import contextlib
import hashlib
import secrets
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from contracts.errors import (
    NotDurable,
    SandboxGone,
    Unreachable,
)
from sidecar.boxhost.contract import Files, MountSick
from sidecar.providers.base import (
    Capabilities,
    Command,
    Endpoint,
    ExecResult,
    Sandbox,
    SandboxInfo,
    SandboxProcess,
    SandboxSpec,
    Status,
)
from sidecar.tasks import finish
from sidecar.workspace import restore
from sidecar.workspace.barrier import Barrier, BarrierLimits, Carrier, Held, Proof, nobody
from sidecar.workspace.choice import EngineChoice
from sidecar.workspace.manifest import Manifests
from sidecar.workspace.restore import NOTHING_RESTORED, Restored, Verified
from sidecar.workspace.store import Store

READ_TO_VERIFY = 64 << 20  # of what has no md5 for an ETag
THAW_SECONDS = 30  # a box-host that is away is waited for
PROBE_PREFIX = ".holdfast-probe-"


@dataclass(frozen=True)
class Engine:
    """What the sidecar must know of one kind of mount; how it is made is the host's to know.

    `sync_root`: the top directory must be fsynced too before a listing can be trusted. `by_key`:
    its daemon speaks S3, by a key for the session alone. `forgets_metadata`: a fresh mount shows
    no modes, times and links before it is made to fetch them. `mtime_grain_ns`: the step in which
    it keeps times.
    """

    name: str
    sync_root: bool
    by_key: bool
    forgets_metadata: bool
    mtime_grain_ns: int


@dataclass(frozen=True)
class WorkspaceLimits:
    """How long a workspace is waited for, in seconds."""

    probe: float = 20
    look: float = restore.LOOK_SECONDS  # at what the mount's daemon has in memory
    store: float = 60  # that is away while something is mounted: a restart takes up to 30 s
    barrier: BarrierLimits = field(default_factory=BarrierLimits)


@dataclass(frozen=True)
class MountReport:
    """How the workspace came to be there. `fresh` is false when it was mounted already."""

    engine: str
    took: float
    fresh: bool
    lost: str = ""
    restored: Restored = NOTHING_RESTORED
    verified: Verified | None = None
    why: str = ""  # this engine, when it is not the provider's usual one


class Workspace:
    """One session's directory, by whatever engine it is there."""

    def __init__(
        self,
        session_id: str,
        files: Files,
        engine: Engine,
        store: Store,
        manifests: Manifests,
        carrier: Carrier | None = None,
        limits: WorkspaceLimits | None = None,
    ) -> None:
        """`carrier` is for an engine that does not bring the files to the store by itself."""
        self.session_id = session_id
        self.engine = engine
        self.files = files
        self.manifests = manifests
        self._limits = limits or WorkspaceLimits()
        self._barrier = Barrier(
            files,
            store,
            manifests,
            session_id,
            engine.name,
            sync_root=engine.sync_root,
            held=files.held,
            carrier=carrier,
            limits=self._limits.barrier,
        )
        self._store = store

    async def probe(self) -> None:
        """Write, fsync, and read back from the store with another client.

        Raises: MountSick, StoreUnavailable.
        """
        name, text = PROBE_PREFIX + secrets.token_hex(8), secrets.token_hex(16)
        await self.files.call("put", bound=self._limits.probe, name=name, text=text)
        try:
            stored = await self._store.sha256(f"{self.session_id}/{name}")
            if stored != hashlib.sha256(text.encode()).hexdigest():
                raise MountSick("not stored", "what was written and fsynced is not in the store")
        finally:
            await self.files.call("remove", bound=self._limits.probe, name=name)

    async def verify(self) -> Verified | None:
        """How much of the last receipt the store still has; None before the first.

        Raises: StoreUnavailable.
        """
        return (
            await restore.wanted(self.session_id, self._store, self.manifests, READ_TO_VERIFY)
        ).verified

    async def sweep_locks(self) -> list[str]:
        """Remove git's locks that a killed process left; their paths. Only while no process of a
        sandbox can hold one. Raises: MountSick."""
        return await restore.sweep_locks(self.files)

    async def barrier(self, turn_id: str, epoch: int, also_held: Held = nobody) -> Proof:
        """Prove that all of it is in the store, and keep the manifest of what was proven.

        Raises: MountSick, other NotDurable, StaleEpoch.
        """
        await self._must_be_mounted()
        try:
            return await self._barrier.prove(turn_id, epoch, also_held)
        finally:
            await self._must_be_mounted()

    async def _must_be_mounted(self) -> None:
        """What is below a mountpoint looks like an empty workspace."""
        if not await self.is_there():
            raise MountSick("ENOTCONN", f"the {self.engine.name} daemon died")

    async def is_there(self) -> bool:
        """Whether what serves it is in place; not whether it answers."""
        return True

    async def sync(self) -> None:
        """Bring the store up to date, with no proof. Raises: MountSick, StoreUnavailable."""
        await self._barrier.sync()


class DurableSandbox:
    """A sandbox with its workspace; everything else is the sandbox's own."""

    def __init__(self, sandbox: Sandbox, workspace: Workspace, report: MountReport) -> None:
        self._sandbox = sandbox
        self._workspace = workspace
        self.report = report
        self.remounted = False

    def stand_on(self, workspace: Workspace) -> None:
        """The workspace was mounted anew under the sandbox."""
        self._workspace = workspace
        self.remounted = True

    @property
    def workspace(self) -> Workspace:
        return self._workspace

    @property
    def id(self) -> str:
        return self._sandbox.id

    @property
    def labels(self) -> Mapping[str, str]:
        return self._sandbox.labels

    @property
    def gateway_url(self) -> str:
        return self._sandbox.gateway_url

    @property
    def gateway_token(self) -> str:
        return self._sandbox.gateway_token

    async def exec(self, command: Command) -> ExecResult:
        return await self._sandbox.exec(command)

    async def spawn(self, command: Command) -> None:
        await self._sandbox.spawn(command)

    async def read(self, path: str) -> bytes:
        return await self._sandbox.read(path)

    async def write(self, path: str, data: bytes, mode: int = 0o600) -> None:
        await self._sandbox.write(path, data, mode)

    async def pack(self, kept: Sequence[str], left: Sequence[str]) -> bytes:
        return await self._sandbox.pack(kept, left)

    async def unpack(self, tar: bytes) -> None:
        await self._sandbox.unpack(tar)

    async def processes(self) -> list[SandboxProcess]:
        return await self._sandbox.processes()

    async def kill(self, processes: Sequence[SandboxProcess]) -> None:
        await self._sandbox.kill(processes)

    async def held(self) -> set[int]:
        return await self._sandbox.held()

    async def freeze(self) -> None:
        await self._sandbox.freeze()

    async def thaw(self) -> None:
        await self._sandbox.thaw()

    @contextlib.asynccontextmanager
    async def frozen(self) -> AsyncIterator[None]:
        """No process of the sandbox runs inside; they all go on afterwards, however it ends. A
        sandbox that is gone has none, which is as good.

        Raises: NotDurable, when a process would not stop; Unreachable, when they do not go on.
        """
        try:
            await self._sandbox.freeze()
        except SandboxGone:
            pass
        except Unreachable as error:
            raise NotDurable(
                f"files may still be written: {error.message}",
                hint="The turn's work is in the sandbox; run another turn to try again.",
            ) from error
        try:
            yield
        finally:
            try:
                await finish(self._sandbox.thaw(), THAW_SECONDS)
            except TimeoutError as error:
                raise Unreachable(
                    f"the sandbox was not thawed within {THAW_SECONDS} s", op="thaw"
                ) from error

    def endpoint(self, port: int) -> Endpoint:
        return self._sandbox.endpoint(port)

    async def keepalive(self) -> None:
        await self._sandbox.keepalive()


class Durable(Protocol):
    """A provider whose sandboxes have a durable workspace: all that a turn needs of one."""

    @property
    def name(self) -> str: ...
    @property
    def capabilities(self) -> Capabilities: ...
    @property
    def choice(self) -> EngineChoice:
        """Which engine serves here, and why."""
        ...

    @property
    def inside(self) -> bool:
        """Whether the workspace is in the sandbox: nobody else may change the store's copy while
        the sandbox lives, known to this process or not."""
        ...

    def sync_seconds(self, session_id: str) -> float | None:
        """How often the workspace is brought up to date while a turn runs: what a sandbox's sudden
        end can cost. None where that is the engine's own doing."""
        ...

    async def trouble(self) -> str: ...
    async def create(self, spec: SandboxSpec) -> DurableSandbox:
        """Raises: SandboxError, MountFailed, StoreUnavailable."""
        ...

    async def attach(self, sandbox_id: str) -> DurableSandbox:
        """Raises: SandboxGone, other SandboxError, MountFailed, StoreUnavailable."""
        ...

    async def status(self, sandbox_id: str) -> Status: ...
    def list(self, labels: Mapping[str, str]) -> AsyncIterator[SandboxInfo]: ...
    async def destroy(self, sandbox_id: str) -> bool: ...
    async def memory(self, sandbox_id: str) -> int:
        """What its processes have in memory together, in bytes; 0 where that is not known. Raises:
        SandboxError."""
        ...

    async def release(self, session_id: str, *, forget: bool = False) -> bool:
        """Let the session's workspace go, and with `forget` every trace of it here; whether it was
        there. Raises: MountFailed, StoreUnavailable."""
        ...

    async def workspace(self, session_id: str) -> Workspace | None:
        """The session's workspace if it is there right now."""
        ...

    async def left_behind(self, session_id: str) -> Workspace:
        """What there is of the session's workspace without its sandbox.

        Raises: MountFailed, StoreUnavailable.
        """
        ...

    async def sweep(self) -> int:
        """At start: shut out what nobody uses any more. Raises: StoreUnavailable."""
        ...

    async def check(self, session_id: str) -> str:
        """What is wrong with the session's workspace right now, or nothing. Cheap."""
        ...

    async def remount(self, session_id: str, lost: str = "") -> MountReport:
        """Bring the workspace back under a living sandbox. Raises: MountFailed,
        StoreUnavailable."""
        ...
