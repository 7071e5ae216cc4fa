"""A provider whose sandboxes have a durable workspace: mounted, fenced, mended and probed on this
host before a sandbox sees it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from contracts.errors import InvalidSpec, MountFailed, StoreUnavailable, Unreachable
from sidecar.boxhost import mounts as boxhost
from sidecar.boxhost.contract import MountHost, MountKey, MountSick
from sidecar.boxhost.mounts import Mount
from sidecar.providers.base import (
    Capabilities,
    Provider,
    Sandbox,
    SandboxInfo,
    SandboxSpec,
    Status,
)
from sidecar.workspace import restore
from sidecar.workspace.choice import EngineChoice
from sidecar.workspace.engine import (
    DurableSandbox,
    Engine,
    MountReport,
    Workspace,
    WorkspaceLimits,
)
from sidecar.workspace.fencing import Fence
from sidecar.workspace.iam import SessionKeys
from sidecar.workspace.manifest import Manifests
from sidecar.workspace.store import Store

FIRST_PAUSE, LONGEST_PAUSE = 0.1, 2.0

T = TypeVar("T")


class MountedWorkspace(Workspace):
    """A workspace that is mounted on this host."""

    def __init__(
        self,
        mount: Mount,
        mounts: MountHost,
        engine: Engine,
        store: Store,
        manifests: Manifests,
        limits: WorkspaceLimits,
    ) -> None:
        files = mounts.files(mount)
        super().__init__(mount.session_id, files, engine, store, manifests, limits=limits)
        self.mount = mount
        self._mounts = mounts

    @property
    def path(self) -> Path:
        return self.mount.path

    async def is_there(self) -> bool:
        return await self._mounts.alive(self.mount)


class MountedSandbox(DurableSandbox):
    @property
    def workspace(self) -> MountedWorkspace:
        assert isinstance(self._workspace, MountedWorkspace)
        return self._workspace


class HostMounted:
    """A Durable provider whose workspaces are mounted on this host."""

    inside = False

    def __init__(
        self,
        provider: Provider,
        engine: Engine,
        mounts: MountHost,
        store: Store,
        manifests: Manifests,
        keys: SessionKeys,
        why: str = "",
        limits: WorkspaceLimits | None = None,
    ) -> None:
        if provider.capabilities.mount != "host":
            raise InvalidSpec(
                f"{engine.name} is mounted on the host, which {provider.name} cannot see",
                op="wrap",
            )
        if not provider.capabilities.freeze:
            raise InvalidSpec(
                f"{provider.name} cannot freeze a sandbox, so nothing in it can be proven",
                op="wrap",
            )
        self._provider = provider
        self._engine = engine
        self.choice = EngineChoice(engine.name, why)
        self._mounts = mounts
        self._store = store
        self._manifests = manifests
        self._limits = limits or WorkspaceLimits()
        self._fence = Fence(mounts, keys)
        self._workspaces: dict[str, MountedWorkspace] = {}
        self._seen: dict[str, Sandbox] = {}
        self._half_made: set[str] = set()  # mounted at best: not mended, not probed

    @property
    def name(self) -> str:
        return self._provider.name

    @property
    def capabilities(self) -> Capabilities:
        return self._provider.capabilities

    def sync_seconds(self, session_id: str) -> None:
        """Its mount does that by itself."""

    async def trouble(self) -> str:
        return await self._provider.trouble()

    async def create(self, spec: SandboxSpec) -> MountedSandbox:
        workspace, report = await self.ready(spec.session_id)
        sandbox = await self._provider.create(replace(spec, session_dir=workspace.path.parent))
        self._seen[sandbox.id] = sandbox
        return MountedSandbox(sandbox, workspace, report)

    async def attach(self, sandbox_id: str) -> MountedSandbox:
        sandbox = await self._provider.attach(sandbox_id)
        self._seen[sandbox.id] = sandbox
        workspace, report = await self.ready(sandbox.labels["session"])
        return MountedSandbox(sandbox, workspace, report)

    async def status(self, sandbox_id: str) -> Status:
        return await self._provider.status(sandbox_id)

    async def list(self, labels: Mapping[str, str]) -> AsyncIterator[SandboxInfo]:
        async for info in self._provider.list(labels):
            yield info

    async def memory(self, sandbox_id: str) -> int:
        """As the sandbox is known already: to attach to it anew would thaw a frozen one."""
        sandbox = self._seen.get(sandbox_id)
        return 0 if sandbox is None else sum(p.memory for p in await sandbox.processes())

    async def destroy(self, sandbox_id: str) -> bool:
        self._seen.pop(sandbox_id, None)
        try:
            return await self._provider.destroy(sandbox_id)
        except Unreachable:
            # A process that waits for a hanging file system cannot die before the daemon does.
            hung = await self._provider.attach(sandbox_id)
            await self._mounts.unmount(hung.labels["session"], gently=False)
            return await self._provider.destroy(sandbox_id)

    async def release(self, session_id: str, *, forget: bool = False) -> bool:
        """Let the session's mount go, and with `forget` every trace of it on this host.

        Raises: MountFailed, StoreUnavailable; then the daemon or its key may still be there.
        """
        was_mounted = await self._unmount(session_id, forget=forget)
        await self._fence.close(session_id)
        return was_mounted

    async def workspace(self, session_id: str) -> MountedWorkspace | None:
        """The session's workspace if it is mounted right now."""
        return await self._adopt(session_id)

    async def left_behind(self, session_id: str) -> MountedWorkspace:
        """All of it: the mount outlives the sandbox."""
        workspace, _ = await self.ready(session_id)
        return workspace

    async def aclose(self) -> None:
        """End the processes that look at mounts; the mounts stay."""
        for workspace in self._workspaces.values():
            await workspace.files.close()

    async def sweep(self) -> int:
        """At start: revoke keys of mounts that are gone. Raises: StoreUnavailable."""
        return await self._fence.sweep()

    async def check(self, session_id: str) -> str:
        """What is wrong with the session's mount right now, or nothing. Cheap: the daemon is asked,
        the store is not."""
        mount = await self._mounts.get(session_id)
        if mount is None:
            return "it is not mounted"
        if not await self._mounts.alive(mount):
            return f"ENOTCONN: the {mount.engine} daemon {mount.daemon.pid} died"
        try:
            await restore.look(self._mounts.files(mount), self._limits.look)
        except MountSick as sick:
            return f"{sick.kind}: {sick.message}"
        return ""

    async def remount(self, session_id: str, lost: str = "") -> MountReport:
        """Mount anew under a living sandbox, which goes on with it. What the daemon had not stored
        is lost: `lost` says why that must be. `workspace()` has the new one.

        Raises: MountFailed, StoreUnavailable.
        """
        started = time.monotonic()
        await self._unmount(session_id, gently=False)
        _, report = await self._patiently(lambda: self._mount_afresh(session_id, started, lost))
        return report

    async def ready(self, session_id: str) -> tuple[MountedWorkspace, MountReport]:
        """The session's workspace, mounted and probed; never anything that is not durable.

        Raises: MountFailed, StoreUnavailable.
        """
        started = time.monotonic()
        lost = await self._patiently(lambda: self._sickness(session_id))
        workspace = await self._adopt(session_id)
        if workspace is not None and lost is None:
            took = time.monotonic() - started
            return workspace, MountReport(self._engine.name, took, fresh=False)
        return await self._patiently(lambda: self._mount_afresh(session_id, started, lost or ""))

    async def _patiently(self, bring_up: Callable[[], Awaitable[T]]) -> T:
        """Wait out a store that is away. A failure is met with one more try in any case, as the
        store may be back by the time it is asked."""
        deadline = time.monotonic() + self._limits.store
        pause, tries_left = FIRST_PAUSE, 1
        while True:
            try:
                return await bring_up()
            except (MountFailed, StoreUnavailable):
                if time.monotonic() >= deadline:
                    raise
                if await self._store.answers():
                    if not tries_left:
                        raise
                    tries_left -= 1
            await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)

    async def _sickness(self, session_id: str) -> str | None:
        """Why what is mounted cannot be used; None when it can, or when nothing is mounted.

        Raises: StoreUnavailable: a mount is not condemned for a store that is away.
        """
        workspace = await self._adopt(session_id)
        if workspace is None:
            known = await self._mounts.get(session_id)
            if known is None or not self._is_ours(known):
                return None
            return f"ENOTCONN: the {known.engine} daemon {known.daemon.pid} died"
        try:
            await workspace.probe()
        except MountSick as sick:
            if not await self._store.answers():
                raise StoreUnavailable(f"the store is away: {sick.message}") from sick
        else:
            return None
        sickness = await self.check(session_id)
        if sickness:
            return sickness
        # The daemon is well, so it was the store, which may have come back a moment ago.
        try:
            await workspace.probe()
        except MountSick as sick:
            return f"{sick.kind}: {sick.message}"
        return None

    async def _mount_afresh(
        self, session_id: str, started: float, lost: str
    ) -> tuple[MountedWorkspace, MountReport]:
        # A daemon that hangs does not let go by itself.
        await self._unmount(session_id, gently=not lost.startswith("hang"))
        await self._fence.close(session_id)
        want = await restore.wanted(session_id, self._store, self._manifests)
        self._half_made.add(session_id)
        workspace = await self._mount(session_id)
        try:
            restored = await restore.restore(
                workspace.files,
                want,
                ask=self._engine.forgets_metadata,
                grain_ns=self._engine.mtime_grain_ns,
            )
            await workspace.probe()
        except (MountSick, StoreUnavailable) as error:
            await self._unmount(session_id, gently=False)
            raise MountFailed(
                f"the workspace is mounted but not durable: {error}",
                hint="Nothing ran. `holdfast doctor` and `holdfast logs` tell more.",
            ) from error
        self._half_made.discard(session_id)
        took = time.monotonic() - started
        return workspace, MountReport(self._engine.name, took, True, lost, restored, want.verified)

    async def _unmount(self, session_id: str, *, gently: bool = True, forget: bool = False) -> bool:
        workspace = self._workspaces.pop(session_id, None)
        if workspace is not None:
            await workspace.files.close()
        try:
            if forget:
                return await self._mounts.forget(session_id)
            return await self._mounts.unmount(session_id, gently=gently)
        except boxhost.MountFailed as error:
            raise MountFailed(f"the workspace's mount cannot be ended: {error}") from error

    async def _mount(self, session_id: str) -> MountedWorkspace:
        key = None
        if self._engine.by_key:
            granted = await self._fence.admit(session_id)
            key = MountKey(granted.access_key, granted.secret_key)
        uid = self.capabilities.uid
        try:
            mount = await self._mounts.mount(session_id, self._engine.name, uid, key)
        except boxhost.MountFailed as error:
            raise MountFailed(
                f"the workspace cannot be mounted: {error}",
                hint="Nothing ran. `holdfast doctor` checks FUSE and the store.",
            ) from error
        workspace = self._workspace_on(mount)
        self._workspaces[session_id] = workspace
        return workspace

    async def _adopt(self, session_id: str) -> MountedWorkspace | None:
        """The workspace that is mounted by our engine, also by a sidecar before us."""
        mount = await self._mounts.get(session_id)
        if mount is None or not self._is_ours(mount) or not await self._mounts.alive(mount):
            return None
        known = self._workspaces.get(session_id)
        if known is None or known.mount != mount:
            known = self._workspace_on(mount)
            self._workspaces[session_id] = known
        return known

    def _is_ours(self, mount: Mount) -> bool:
        """Whether it is by our engine, shows the files as our sandboxes' user's, and is whole."""
        made = mount.session_id not in self._half_made
        return made and (mount.engine, mount.uid) == (self._engine.name, self.capabilities.uid)

    def _workspace_on(self, mount: Mount) -> MountedWorkspace:
        return MountedWorkspace(
            mount, self._mounts, self._engine, self._store, self._manifests, self._limits
        )
