"""What is the same for every host-side engine: mount, probe, remount, barrier."""

from __future__ import annotations

import hashlib
import secrets
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from contracts.errors import InvalidSpec, MountFailed, StoreUnavailable, Unreachable
from sidecar.boxhost import mounts as boxhost
from sidecar.boxhost.mounts import Mount, Mounts
from sidecar.providers.base import (
    Capabilities,
    Command,
    Endpoint,
    ExecResult,
    Provider,
    Sandbox,
    SandboxInfo,
    SandboxProcess,
    SandboxSpec,
    Status,
)
from sidecar.workspace.barrier import Barrier, Proof
from sidecar.workspace.host_files import HostFiles, MountSick
from sidecar.workspace.store import Store

PROBE_SECONDS = 20
PROBE_PREFIX = ".holdfast-probe-"


@dataclass(frozen=True)
class Daemon:
    """The process that serves a mount. Credentials go by environment, never by argv."""

    argv: Sequence[str]
    env: Mapping[str, str]


class Engine(Protocol):
    """How one kind of file system is mounted on this host."""

    @property
    def name(self) -> str: ...
    @property
    def sync_root(self) -> bool:
        """Whether the top directory must be fsynced too before a listing can be trusted."""
        ...

    @property
    def give_root(self) -> bool:
        """Whether the top directory must be given to the sandbox's user after each mount."""
        ...

    def daemon(self, session_id: str, mountpoint: Path, uid: int) -> Daemon: ...


@dataclass(frozen=True)
class MountReport:
    """How the workspace came to be there. `fresh` is false when it was mounted already."""

    engine: str
    took: float
    fresh: bool
    lost: str = ""


class Workspace:
    """One session's mounted directory."""

    def __init__(self, mount: Mount, engine: Engine, store: Store) -> None:
        self.mount = mount
        self.engine = engine
        self.files = HostFiles(mount.path)
        self._barrier = Barrier(self.files, store, mount.session_id, engine.name, engine.sync_root)
        self._store = store

    @property
    def path(self) -> Path:
        return self.mount.path

    async def probe(self) -> None:
        """Write, fsync, and read back from the store with another client.

        Raises: MountSick, StoreUnavailable.
        """
        name, text = PROBE_PREFIX + secrets.token_hex(8), secrets.token_hex(16)
        await self.files.call("put", bound=PROBE_SECONDS, name=name, text=text)
        try:
            stored = await self._store.sha256(f"{self.mount.session_id}/{name}")
            if stored != hashlib.sha256(text.encode()).hexdigest():
                raise MountSick("not stored", "what was written and fsynced is not in the store")
        finally:
            await self.files.call("remove", bound=PROBE_SECONDS, name=name)

    async def barrier(self) -> Proof:
        """Raises: NotDurable, StoreUnavailable."""
        return await self._barrier.prove()


class HostMounted:
    """A provider whose sandboxes have a durable workspace, mounted on this host."""

    def __init__(self, provider: Provider, engine: Engine, mounts: Mounts, store: Store) -> None:
        if provider.capabilities.mount != "host":
            raise InvalidSpec(
                f"{engine.name} is mounted on the host, which {provider.name} cannot see",
                op="wrap",
            )
        self._provider = provider
        self._engine = engine
        self._mounts = mounts
        self._store = store
        self._workspaces: dict[str, Workspace] = {}

    @property
    def name(self) -> str:
        return self._provider.name

    @property
    def capabilities(self) -> Capabilities:
        return self._provider.capabilities

    async def create(self, spec: SandboxSpec) -> DurableSandbox:
        workspace, report = await self.ready(spec.session_id)
        sandbox = await self._provider.create(replace(spec, session_dir=workspace.path.parent))
        return DurableSandbox(sandbox, workspace, report)

    async def attach(self, sandbox_id: str) -> DurableSandbox:
        sandbox = await self._provider.attach(sandbox_id)
        workspace, report = await self.ready(sandbox.labels["session"])
        return DurableSandbox(sandbox, workspace, report)

    async def status(self, sandbox_id: str) -> Status:
        return await self._provider.status(sandbox_id)

    async def list(self, labels: Mapping[str, str]) -> AsyncIterator[SandboxInfo]:
        async for info in self._provider.list(labels):
            yield info

    async def destroy(self, sandbox_id: str) -> bool:
        try:
            return await self._provider.destroy(sandbox_id)
        except Unreachable:
            # A process that waits for a hanging file system cannot die before the daemon does.
            hung = await self._provider.attach(sandbox_id)
            await self._mounts.unmount(hung.labels["session"], gently=False)
            return await self._provider.destroy(sandbox_id)

    async def release(self, session_id: str, *, forget: bool = False) -> bool:
        """Let the session's mount go, and with `forget` every trace of it on this host."""
        workspace = self._workspaces.pop(session_id, None)
        if workspace is not None:
            await workspace.files.close()
        if forget:
            return await self._mounts.forget(session_id)
        return await self._mounts.unmount(session_id)

    def workspace(self, session_id: str) -> Workspace | None:
        """The session's workspace if it is mounted right now."""
        return self._adopt(session_id)

    async def ready(self, session_id: str) -> tuple[Workspace, MountReport]:
        """The session's workspace, mounted and probed; never anything that is not durable.

        Raises: MountFailed, StoreUnavailable.
        """
        started = time.monotonic()
        lost = ""
        workspace = self._adopt(session_id)
        known = self._mounts.get(session_id)
        if workspace is None and known is not None and known.engine == self._engine.name:
            lost = f"the {known.engine} daemon {known.daemon.pid} died"
        if workspace is not None:
            try:
                await workspace.probe()
                return workspace, MountReport(
                    self._engine.name, time.monotonic() - started, fresh=False
                )
            except MountSick as sick:
                lost = f"{sick.kind}: {sick.message}"
        await self.release(session_id)
        workspace = await self._mount(session_id)
        try:
            if self._engine.give_root:
                uid = self._mounts.uid(session_id)
                await workspace.files.call("own", bound=PROBE_SECONDS, uid=uid)
            await workspace.probe()
        except (MountSick, StoreUnavailable) as error:
            await self.release(session_id)
            raise MountFailed(
                f"the workspace is mounted but not durable: {error}",
                hint="Nothing ran. `holdfast doctor` and `holdfast logs` tell more.",
            ) from error
        took = time.monotonic() - started
        return workspace, MountReport(self._engine.name, took, fresh=True, lost=lost)

    async def _mount(self, session_id: str) -> Workspace:
        uid = self._mounts.uid(session_id)
        mountpoint = self._mounts.parent(session_id) / "workspace"
        daemon = self._engine.daemon(session_id, mountpoint, uid)
        try:
            mount = await self._mounts.mount(session_id, self._engine.name, daemon.argv, daemon.env)
        except boxhost.MountFailed as error:
            raise MountFailed(
                f"the workspace cannot be mounted: {error}",
                hint="Nothing ran. `holdfast doctor` checks FUSE and the store.",
            ) from error
        workspace = Workspace(mount, self._engine, self._store)
        self._workspaces[session_id] = workspace
        return workspace

    def _adopt(self, session_id: str) -> Workspace | None:
        """The workspace that is mounted by our engine, also by a sidecar before us."""
        mount = self._mounts.get(session_id)
        if mount is None or mount.engine != self._engine.name or not mount.alive():
            return None
        known = self._workspaces.get(session_id)
        if known is None or known.mount != mount:
            known = self._workspaces[session_id] = Workspace(mount, self._engine, self._store)
        return known


class DurableSandbox:
    """A sandbox with its workspace; everything else is the sandbox's own."""

    def __init__(self, sandbox: Sandbox, workspace: Workspace, report: MountReport) -> None:
        self._sandbox = sandbox
        self.workspace = workspace
        self.report = report

    @property
    def id(self) -> str:
        return self._sandbox.id

    @property
    def labels(self) -> Mapping[str, str]:
        return self._sandbox.labels

    @property
    def gateway_url(self) -> str:
        return self._sandbox.gateway_url

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

    def endpoint(self, port: int) -> Endpoint:
        return self._sandbox.endpoint(port)
