"""A provider whose sandboxes have a durable workspace that only they can reach: mounted inside, or
on the sandbox's own disk and carried to the store from there.

The sandbox comes first here, and its workspace goes with it. What the store has outlives both.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, cast

from contracts.errors import MountFailed, SandboxError, StoreUnavailable, Unreachable
from sidecar.boxhost.contract import Files, MountSick
from sidecar.providers.base import (
    Capabilities,
    InBoxSandbox,
    Provider,
    SandboxInfo,
    SandboxSpec,
    Status,
)
from sidecar.workspace import restore
from sidecar.workspace.barrier import Carrier
from sidecar.workspace.choice import EngineChoice
from sidecar.workspace.engine import DurableSandbox, Engine, MountReport, Workspace
from sidecar.workspace.fencing import Fence
from sidecar.workspace.iam import SessionKey
from sidecar.workspace.manifest import Manifests
from sidecar.workspace.store import Store, StoreAddress
from sidecar.workspace.stored import StoredWorkspace

Closing = contextlib.AsyncExitStack


@dataclass(frozen=True)
class Brought:
    """`carrier` brings the workspace to the store, unless that happens by itself. `fresh` is false
    when all was there already, modes and times and links too."""

    carrier: Carrier | None
    fresh: bool


class Bringing(Protocol):
    """How one engine brings a session's files into a sandbox."""

    @property
    def engine(self) -> Engine: ...
    @property
    def sync_seconds(self) -> float | None: ...

    async def unsuited(self, sandbox: InBoxSandbox) -> str:
        """Why it cannot serve in this sandbox; nothing when it can. Raises: Unreachable."""
        ...

    async def bring(
        self,
        sandbox: InBoxSandbox,
        files: Files,
        session_id: str,
        key: SessionKey,
        closing: Closing,
        *,
        new: bool,
    ) -> Brought:
        """Have the workspace there, where `files` sees it, by a key for the session alone. What
        must be closed is entered into `closing`. Only in a `new` sandbox may what is there be
        cleared away.

        Raises: MountSick, Unreachable, StoreUnavailable.
        """
        ...

    async def brought(self, sandbox: InBoxSandbox, session_id: str) -> None:
        """Everything is in place. Raises: Unreachable."""
        ...

    async def is_there(self, sandbox: InBoxSandbox) -> bool:
        """Raises: Unreachable."""
        ...


class InBoxWorkspace(Workspace):
    """A workspace inside a sandbox. `closing` has what serves it on our side."""

    def __init__(
        self,
        parts: Parts,
        sandbox: InBoxSandbox,
        files: Files,
        bringing: Bringing,
        session_id: str,
        carrier: Carrier | None,
        closing: Closing,
    ) -> None:
        super().__init__(session_id, files, bringing.engine, parts.store, parts.manifests, carrier)
        self.sandbox = sandbox
        self.closing = closing
        self._bringing = bringing
        self._carried = carrier is not None

    async def is_there(self) -> bool:
        try:
            return await self._bringing.is_there(self.sandbox)
        except Unreachable as error:
            raise MountSick("unreachable", error.message) from error

    async def probe(self) -> None:
        """What is on a sandbox's disk is carried to the store, with the key that it has."""
        if self._carried:
            await restore.look(self.files)
            await self.sync()
        else:
            await super().probe()


@dataclass(frozen=True)
class Parts:
    """What every workspace needs of the stack."""

    store: Store
    manifests: Manifests
    fence: Fence
    address: StoreAddress


class InBox:
    """A Durable provider."""

    inside = True

    def __init__(
        self, provider: Provider, bringings: Sequence[Bringing], parts: Parts, why: str
    ) -> None:
        """`bringings` are the engines that may serve, the preferred one first."""
        self._provider = provider
        self._bringings = bringings
        self._parts = parts
        self.choice = EngineChoice(bringings[0].engine.name, why)
        self._workspaces: dict[str, InBoxWorkspace] = {}
        self._brought_by: dict[str, Bringing] = {}

    @property
    def name(self) -> str:
        return self._provider.name

    @property
    def capabilities(self) -> Capabilities:
        return self._provider.capabilities

    def sync_seconds(self, session_id: str) -> float | None:
        by = self._brought_by.get(session_id, self._bringings[-1])
        return by.sync_seconds

    async def trouble(self) -> str:
        return await self._provider.trouble()

    async def create(self, spec: SandboxSpec) -> DurableSandbox:
        sandbox = cast("InBoxSandbox", await self._provider.create(spec))
        try:
            return await self._with_workspace(sandbox, spec.session_id, new=True)
        except BaseException:
            # A box without its files would be taken for the session's at the next turn.
            with contextlib.suppress(SandboxError):
                await self._provider.destroy(sandbox.id)
            raise

    async def attach(self, sandbox_id: str) -> DurableSandbox:
        sandbox = cast("InBoxSandbox", await self._provider.attach(sandbox_id))
        return await self._with_workspace(sandbox, sandbox.labels["session"], new=False)

    async def _with_workspace(
        self, sandbox: InBoxSandbox, session_id: str, *, new: bool
    ) -> DurableSandbox:
        started = time.monotonic()
        known = self._workspaces.get(session_id)
        lost = ""
        if known is not None and known.sandbox.id == sandbox.id:
            lost = await self._sickness(known)
            if not lost:
                took = time.monotonic() - started
                return DurableSandbox(
                    sandbox, known, MountReport(known.engine.name, took, fresh=False)
                )
        workspace, report = await self._bring(sandbox, session_id, lost, new=new)
        return DurableSandbox(sandbox, workspace, report)

    async def _sickness(self, workspace: InBoxWorkspace) -> str:
        """Why it cannot be used as it is; nothing when it can. Raises: StoreUnavailable."""
        try:
            if not await workspace.is_there():
                return f"ENOTCONN: the {workspace.engine.name} daemon died"
            await workspace.probe()
        except MountSick as sick:
            if not await self._parts.store.answers():
                raise StoreUnavailable(f"the store is away: {sick.message}") from sick
            return f"{sick.kind}: {sick.message}"
        return ""

    async def _suited(self, sandbox: InBoxSandbox) -> tuple[Bringing, str]:
        """The first engine that can serve in the sandbox, and why not those before it.

        Raises: MountFailed, Unreachable.
        """
        reasons: list[str] = []
        for bringing in self._bringings:
            reason = await bringing.unsuited(sandbox)
            if not reason:
                return bringing, "; ".join(reasons)
            reasons.append(reason)
        raise MountFailed(
            f"no engine can serve in the sandbox: {'; '.join(reasons)}",
            hint="Set HOLDFAST_WORKSPACE=checkpoint: it needs nothing inside.",
        )

    async def _bring(
        self, sandbox: InBoxSandbox, session_id: str, lost: str = "", *, new: bool
    ) -> tuple[InBoxWorkspace, MountReport]:
        """Raises: MountFailed, StoreUnavailable."""
        started = time.monotonic()
        await self._let_go(session_id)
        await self._parts.fence.close(session_id)
        key = await self._parts.fence.admit(session_id, inside=True)
        closing = Closing()
        try:
            bringing, why = await self._suited(sandbox)
            files = sandbox.files()
            closing.push_async_callback(files.close)
            made = await bringing.bring(sandbox, files, session_id, key, closing, new=new)
            workspace = InBoxWorkspace(
                self._parts, sandbox, files, bringing, session_id, made.carrier, closing
            )
            restored, verified = restore.NOTHING_RESTORED, None
            if made.fresh:
                restored, verified = await self._restored(workspace)
            await bringing.brought(sandbox, session_id)
            await workspace.probe()
        except (MountSick, Unreachable) as error:
            await closing.aclose()
            raise MountFailed(
                f"the sandbox has no durable workspace: {error}",
                hint="Nothing ran. `holdfast doctor --provider` checks the way to the store.",
            ) from error
        except BaseException:
            await closing.aclose()
            raise
        self._workspaces[session_id] = workspace
        self._brought_by[session_id] = bringing
        took = time.monotonic() - started
        return workspace, MountReport(
            bringing.engine.name, took, True, lost, restored, verified, why
        )

    async def _restored(
        self, workspace: InBoxWorkspace
    ) -> tuple[restore.Restored, restore.Verified | None]:
        engine = workspace.engine
        want = await restore.wanted(workspace.session_id, self._parts.store, self._parts.manifests)
        restored = await restore.restore(
            workspace.files, want, ask=engine.forgets_metadata, grain_ns=engine.mtime_grain_ns
        )
        return restored, want.verified

    async def status(self, sandbox_id: str) -> Status:
        return await self._provider.status(sandbox_id)

    async def list(self, labels: Mapping[str, str]) -> AsyncIterator[SandboxInfo]:
        async for info in self._provider.list(labels):
            yield info

    async def memory(self, sandbox_id: str) -> int:
        for workspace in self._workspaces.values():
            if workspace.sandbox.id == sandbox_id:
                return sum(p.memory for p in await workspace.sandbox.processes())
        return 0

    async def destroy(self, sandbox_id: str) -> bool:
        return await self._provider.destroy(sandbox_id)

    async def release(self, session_id: str, *, forget: bool = False) -> bool:
        was_there = session_id in self._workspaces
        await self._let_go(session_id)
        self._brought_by.pop(session_id, None)
        await self._parts.fence.close(session_id)
        return was_there

    async def _let_go(self, session_id: str) -> None:
        workspace = self._workspaces.pop(session_id, None)
        if workspace is not None:
            await workspace.closing.aclose()

    async def aclose(self) -> None:
        """The sandboxes live on, with their files."""
        for session_id in list(self._workspaces):
            await self._let_go(session_id)

    async def workspace(self, session_id: str) -> InBoxWorkspace | None:
        return self._workspaces.get(session_id)

    async def left_behind(self, session_id: str) -> Workspace:
        """What the store has: the sandbox took the rest with it."""
        await self._let_go(session_id)
        await self._parts.fence.close(session_id)
        engine = self._bringings[0].engine
        return StoredWorkspace(session_id, engine, self._parts.store, self._parts.manifests)

    async def sweep(self) -> int:
        """Nothing: a box may live on with its key, and who takes the session over revokes it."""
        return 0

    async def check(self, session_id: str) -> str:
        workspace = self._workspaces.get(session_id)
        if workspace is None:
            return "it is not there"
        try:
            if not await workspace.is_there():
                return f"ENOTCONN: the {workspace.engine.name} daemon died"
            await restore.look(workspace.files)
        except MountSick as sick:
            # A sandbox that cannot be reached says nothing about its workspace.
            return "" if sick.kind == "unreachable" else f"{sick.kind}: {sick.message}"
        return ""

    async def remount(self, session_id: str, lost: str = "") -> MountReport:
        workspace = self._workspaces.get(session_id)
        if workspace is None:
            raise MountFailed(f"the workspace of {session_id} went with its sandbox")
        try:
            await workspace.sandbox.unmount(gently=False)
        except Unreachable as error:
            raise MountFailed(f"the workspace cannot be mounted anew: {error}") from error
        _, report = await self._bring(workspace.sandbox, session_id, lost, new=False)
        return report
