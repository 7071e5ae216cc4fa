"""Which sandbox a session's turn runs in: the living one, or a new one when it is proven gone."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from uuid import UUID

from contracts import events
from contracts.bodies import Destroyed, Killed, Released, RunRequest, SandboxBody, SandboxList
from contracts.errors import (
    HoldfastError,
    SandboxError,
    SandboxGone,
    TurnRunning,
    Unreachable,
    WorkspaceBusy,
    WorkspaceMounted,
)
from sidecar.providers import registry
from sidecar.providers.base import WORKSPACE, Command, SandboxInfo, SandboxSpec, Status
from sidecar.runs.egress import is_proxied
from sidecar.runs.gateway import Gateway
from sidecar.runs.live import Live, LiveSandboxes
from sidecar.tasks import at_a_time
from sidecar.workspace.choice import EngineChoice
from sidecar.workspace.engine import Durable, DurableSandbox, Workspace
from sidecar.workspace.restore import Restored, Verified

log = logging.getLogger(__name__)

Emit = Callable[[events.EventBase], Awaitable[None]]
IS_GONE = f"status is {Status.GONE}"
REAP_SECONDS = 0.5
REAP_AT_A_TIME = 4
TROUBLE_SECONDS = 5.0
ANSWER_SECONDS = 10
# How long a change of files waits for a sandbox that is on its way in or out.
BUSY_SECONDS = 30
LOCK_SECONDS = 0.25
# A sandbox that is slow to tell its memory, or will not, has none to show.
MEASURE_SECONDS = 5.0
MEASURE_AT_A_TIME = 16
# A cloud may list a sandbox for a moment after it has ended it.
GONE_SECONDS = 10.0
GONE_POLL_SECONDS = 0.2


@dataclass(frozen=True)
class Providers:
    """By name: with the engine that is usual there, and with checkpoint, for a turn that asks."""

    usual: Mapping[str, Durable]
    copied: Mapping[str, Durable]


@dataclass(frozen=True)
class Warmth:
    """How long a sandbox waits for the next turn, and how many may wait at a time."""

    seconds: float
    most: int


class Sandboxes:
    """The sandboxes of all sessions. One turn at a time touches a session's."""

    def __init__(
        self,
        providers: Providers,
        gateway: Gateway,
        live: LiveSandboxes,
        warmth: Warmth,
    ) -> None:
        self.providers = providers.usual
        self._copied = providers.copied
        self._troubles: tuple[float, dict[str, str]] = (-TROUBLE_SECONDS, {})
        self.gateway = gateway
        self.live = live
        self._warmth = warmth
        self._locks: defaultdict[UUID, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._cleared: set[tuple[UUID, str]] = set()  # sessions that lost their record, by provider

    def lock(self, session_id: UUID) -> asyncio.Lock:
        """Held by whoever creates, uses or ends the session's sandbox."""
        return self._locks[session_id]

    async def troubles(self) -> dict[str, str]:
        """Why a provider cannot be used right now, by name; empty for one that can. Not asked more
        often than need be: a cloud takes its time, and pages ask again and again."""
        asked_at, known = self._troubles
        if time.monotonic() - asked_at > TROUBLE_SECONDS:
            names = list(self.providers)
            reasons = await asyncio.gather(*(_trouble(self.providers[name]) for name in names))
            known = dict(zip(names, reasons, strict=True))
            self._troubles = (time.monotonic(), known)
        return known

    async def _usable(self) -> list[Durable]:
        troubles = await self.troubles()
        return [provider for name, provider in self.providers.items() if not troubles[name]]

    async def acquire(self, request: RunRequest, emit: Emit) -> tuple[DurableSandbox, Live]:
        """The session's sandbox, its workspace mounted and probed.

        Raises: SandboxError, MountFailed, StoreUnavailable, Unavailable.
        """
        live = self.live.get(request.session_id)
        wanted = (request.provider, request.durability)
        if live is not None and (live.provider, live.durability) != wanted:
            await self.end(live, emit)
            live = None
        if live is not None:
            sandbox = await self._attach(live, emit)
            if sandbox is not None:
                live = live.warm_for(None)
                if sandbox.report.fresh:
                    live = live.without_processes()
                self.live.put(live)
                return sandbox, live
        return await self._create(request, emit)

    async def rejoin(
        self, request: RunRequest, sandbox_id: str, emit: Emit
    ) -> tuple[DurableSandbox, Live]:
        """The sandbox that a sidecar before us ran the turn in, also when its record is lost.

        Raises: SandboxGone, MountFailed, StoreUnavailable.
        """
        live = self.live.get(request.session_id)
        if live is None and sandbox_id:
            live = Live(
                request.session_id,
                request.provider,
                sandbox_id,
                request.durability,
                proxied=is_proxied(request),
            )
            self.live.put(live)
        if live is not None and live.sandbox_id == sandbox_id:
            sandbox = await self._attach(live, emit)
            if sandbox is not None:
                return sandbox, live
        raise SandboxGone(f"the sandbox {sandbox_id} is gone", op="attach")

    async def mount_trouble(self, live: Live) -> str:
        """What is wrong with the session's mount right now, in words; nothing when all is well."""
        return await self._of(live).check(str(live.session_id))

    async def remount(self, live: Live, sandbox: DurableSandbox, lost: str, emit: Emit) -> None:
        """Mount the workspace anew under the living sandbox. Raises: MountFailed,
        StoreUnavailable."""
        provider = self._of(live)
        await emit(events.MountLost(engine=sandbox.workspace.engine.name, reason=lost))
        report = await provider.remount(str(live.session_id), lost)
        workspace = await provider.workspace(str(live.session_id))
        assert workspace is not None
        sandbox.stand_on(workspace)
        await emit(events.MountRestored(engine=report.engine, took=report.took))
        await _tell_restored(report.restored, emit)

    async def is_gone(self, live: Live) -> bool:
        """Whether its provider says so."""
        return await self._of(live).status(live.sandbox_id) is Status.GONE

    async def check_running(self, live: Live) -> None:
        """Raises: SandboxGone, Unreachable."""
        if await self.is_gone(live):
            raise SandboxGone(f"the sandbox {live.sandbox_id} is gone", op="status")

    async def workspace(self, request: RunRequest) -> Workspace:
        """What is left of the session's workspace without its sandbox. Raises: MountFailed,
        StoreUnavailable."""
        return await self._of(request).left_behind(str(request.session_id))

    def sync_seconds(self, live: Live) -> float | None:
        """How often the workspace is to be brought to the store while a turn runs, if at all."""
        return self._of(live).sync_seconds(str(live.session_id))

    def _of(self, whose: Live | RunRequest) -> Durable:
        """The provider, with the workspace kept as the turn asks for.

        Raises: UnknownProvider.
        """
        kept = self._copied if whose.durability == "checkpoint" else self.providers
        return kept[registry.check(whose.provider).name]

    def _all(self) -> list[Durable]:
        """Every one once."""
        both = (*self.providers.values(), *self._copied.values())
        return list({id(each): each for each in both}.values())

    def engine(self, provider: str) -> EngineChoice:
        """Which engine serves there, and why."""
        return self.providers[provider].choice

    async def mounted(self, session_id: UUID) -> Workspace | None:
        """The session's workspace if it is mounted right now, whether a sandbox lives or not; one
        that is inside of a sandbox goes with it."""
        for provider in self._all():
            workspace = await provider.workspace(str(session_id))
            if workspace is None or (provider.inside and await self._has_no_sandbox(session_id)):
                continue
            return workspace
        return None

    async def _has_no_sandbox(self, session_id: UUID) -> bool:
        live = self.live.get(session_id)
        return live is None or await self.is_gone(live)

    @contextlib.asynccontextmanager
    async def unmounted(self, session_id: UUID) -> AsyncIterator[None]:
        """Nothing mounts the workspace for the time of the block.

        Raises: WorkspaceMounted; WorkspaceBusy, when it is about to be and takes too long.
        """
        lock = self.lock(session_id)
        deadline = time.monotonic() + BUSY_SECONDS
        while True:
            if await self.mounted(session_id) is not None:
                raise WorkspaceMounted("the workspace is mounted")
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LOCK_SECONDS):
                    await lock.acquire()
                break
            if time.monotonic() > deadline:
                raise WorkspaceBusy("the session's sandbox is being made or ended", hint="Wait.")
        try:
            if await self.mounted(session_id) is not None or await self._is_inside(session_id):
                raise WorkspaceMounted("the workspace is mounted")
            yield
        finally:
            lock.release()

    async def _is_inside(self, session_id: UUID) -> bool:
        """Whether a living sandbox has the workspace, which this process may know by its record
        alone: then it is attached to, and mounted from now on. The caller has the session's lock.

        Raises: WorkspaceBusy, when the sandbox does not answer.
        """
        live = self.live.get(session_id)
        if live is None or not self._of(live).inside:
            return False
        try:
            sandbox = await self._of(live).attach(live.sandbox_id)
        except SandboxGone:
            return False
        except HoldfastError as error:
            raise WorkspaceBusy(
                f"the files are in the sandbox {live.sandbox_id}, which does not answer: "
                f"{error.message}",
                hint="Try again, or end the sandbox: then the next one starts from the store.",
            ) from error
        if sandbox.report.fresh:
            self.live.put(live.without_processes())
        return True

    async def _attach(self, live: Live, emit: Emit) -> DurableSandbox | None:
        provider = self._of(live)
        try:
            sandbox = await provider.attach(live.sandbox_id)
        except SandboxGone as gone:
            await emit(
                events.SandboxGone(
                    provider=live.provider, sandbox_id=live.sandbox_id, reason=gone.message
                )
            )
            self.live.drop(live.session_id)
            return None
        report = sandbox.report
        if report.lost:
            await emit(events.MountLost(engine=report.engine, reason=report.lost))
        if report.fresh:
            await emit(events.MountRestored(engine=report.engine, took=report.took))
            await _tell_restored(report.restored, emit)
            if not await self._sees_workspace(sandbox):
                await _destroy(provider, live.sandbox_id)
                await emit(
                    events.SandboxGone(
                        provider=live.provider,
                        sandbox_id=live.sandbox_id,
                        reason="it could not see the workspace that was mounted anew",
                    )
                )
                self.live.drop(live.session_id)
                return None
        await emit(events.SandboxAttached(provider=live.provider, sandbox_id=live.sandbox_id))
        return sandbox

    async def _sees_workspace(self, sandbox: DurableSandbox) -> bool:
        """Where mounts are not shared with the box (an ordinary user's, on some hosts), it keeps
        the dead one."""
        look = Command(["ls", WORKSPACE], cwd="/", timeout=10)
        return (await sandbox.exec(look)).exit_code == 0

    async def _create(self, request: RunRequest, emit: Emit) -> tuple[DurableSandbox, Live]:
        provider = self._of(request)
        session = str(request.session_id)
        # A box without a record of ours (a crash between the two) must not get a rival.
        async for stray in provider.list({"session": session}):
            await _destroy(provider, stray.sandbox_id)
        started = time.monotonic()
        await emit(events.SandboxCreating(provider=request.provider))
        sandbox = await provider.create(
            SandboxSpec(
                key=f"{session}-{request.epoch}",
                session_id=session,
                labels={"session": session, "epoch": str(request.epoch)},
                gateway_socket=await self.gateway.open(session),
            )
        )
        live = Live(
            request.session_id,
            request.provider,
            sandbox.id,
            request.durability,
            proxied=is_proxied(request),
        )
        self.live.put(live)
        report = sandbox.report
        why = report.why or provider.choice.why
        await emit(events.MountReady(engine=report.engine, why=why, took=report.took))
        await _tell_restored(report.restored, emit)
        await _tell_verified(report.verified or await sandbox.workspace.verify(), emit)
        await _sweep_locks(sandbox, emit)
        took = time.monotonic() - started
        network = registry.check(request.provider).network
        await emit(
            events.SandboxReady(
                provider=request.provider, sandbox_id=sandbox.id, took=took, network=network
            )
        )
        return sandbox, live

    async def keep_warm(self, live: Live, emit: Emit) -> None:
        """After a turn: wait for the next one, or end at once when nothing is to be kept."""
        if self._warmth.seconds <= 0 or self._warmth.most <= 0:
            self.live.put(live.warm_for(0))  # for the reaper, should it not end
            await self.end(live, emit)
        else:
            self.live.put(live.warm_for(self._warmth.seconds))

    def let_go(self, *, except_for: Collection[UUID]) -> None:
        """At start: a sandbox that no turn uses any more is on its warm time."""
        for live in self.live.all():
            if live.warm_until is None and live.session_id not in except_for:
                try:
                    self.live.put(live.warm_for(self._warmth.seconds))
                except OSError:  # it is ended with the stack, or after the next start
                    log.exception("cannot give sandbox %s its warm time", live.sandbox_id)

    async def end(self, live: Live, emit: Emit) -> None:
        """Destroy the sandbox, let its mount go. Until it is proven gone its record stays, and the
        reaper tries again.

        Raises: SandboxError, MountFailed, StoreUnavailable.
        """
        provider = self._of(live)
        await _destroy(provider, live.sandbox_id)
        await provider.release(str(live.session_id))
        self.live.drop(live.session_id)
        await emit(
            events.SandboxDestroyed(
                provider=live.provider, sandbox_id=live.sandbox_id, proof=IS_GONE
            )
        )

    async def kill(self, session_id: UUID) -> Killed:
        """SIGKILL, with no regard for a running turn: that is what it is for. The record stays, so
        that the next turn finds the sandbox gone and says so."""
        live = self.live.get(session_id)
        if live is None:
            return Killed(session_id=session_id, killed=False)
        killed = await _destroy(self._of(live), live.sandbox_id)
        return Killed(session_id=session_id, killed=killed, sandbox_id=live.sandbox_id)

    async def release(self, session_id: UUID) -> Released:
        """Everything of a session that is being deleted."""
        session = str(session_id)
        sandboxes = mounts = 0
        async with self.lock(session_id):
            usable = await self._usable()
            for provider in usable:
                async for info in provider.list({"session": session}):
                    sandboxes += await _destroy(provider, info.sandbox_id)
            # Now and not before: a mount that a sandbox uses is slow to let go.
            for provider in usable:
                mounts += await provider.release(session, forget=True)
            for provider in self._copied.values():
                if await provider.workspace(session) is not None:
                    await provider.release(session, forget=True)
            self.live.drop(session_id)
            await self.gateway.close_session(session)
        self._locks.pop(session_id, None)
        return Released(session_id=session_id, sandboxes=sandboxes, mounts=mounts)

    async def destroy(self, provider_name: str, sandbox_id: str) -> Destroyed:
        """End a sandbox that nothing answers for, and prove it; one that is gone stays gone.

        Raises: UnknownProvider, TurnRunning when the session's turn may use it, SandboxError.
        """
        provider = self.providers[registry.check(provider_name).name]
        lived = False
        async for info in provider.list({}):
            if info.sandbox_id != sandbox_id:
                continue
            session_id = UUID(info.labels["session"])
            if self.lock(session_id).locked():
                raise TurnRunning("the session's sandbox is in use", session_id=str(session_id))
            async with self.lock(session_id):
                live = self.live.get(session_id)
                if live is not None and live.sandbox_id == sandbox_id:
                    await self.end(live, _silent)
                    lived = True
                else:
                    lived = await _destroy(provider, sandbox_id)
        status = await provider.status(sandbox_id)
        if status is not Status.GONE:  # not listed, and yet not gone
            message = f"the status of sandbox {sandbox_id} is {status}: it may live"
            raise Unreachable(message, op="destroy")
        return Destroyed(provider=provider_name, sandbox_id=sandbox_id, lived=lived, proof=IS_GONE)

    async def list(self, *, measure: bool = False) -> SandboxList:
        """What the providers say is there, with what we know of it; `measure` their memory too. A
        provider that cannot be asked right now is left out, and not named as asked."""
        known = {live.sandbox_id: live for live in self.live.all()}
        found: list[tuple[Durable, SandboxInfo]] = []
        asked: list[str] = []
        for provider in await self._usable():
            try:
                async for info in provider.list({}):
                    found.append((provider, info))
            except SandboxError as error:
                log.warning("the sandboxes of %s cannot be listed: %s", provider.name, error)
            else:
                asked.append(provider.name)
        # Together: one that does not answer must not hold up the others.
        memory: Sequence[int | None] = [None] * len(found)
        if measure:
            memory = await at_a_time(MEASURE_AT_A_TIME, [_memory(*each) for each in found])
        return SandboxList(
            sandboxes=[
                self._body(provider, info, known.get(info.sandbox_id), used)
                for (provider, info), used in zip(found, memory, strict=True)
            ],
            asked=asked,
        )

    def _body(
        self, provider: Durable, info: SandboxInfo, live: Live | None, memory: int | None
    ) -> SandboxBody:
        session_id = UUID(info.labels["session"])
        return SandboxBody(
            session_id=session_id,
            sandbox_id=info.sandbox_id,
            provider=provider.name,
            state=info.status.value,
            engine=provider.choice.name,
            created_at=datetime.fromisoformat(info.created_at),
            warm_until=live.warm_until if live else None,
            in_use=self.lock(session_id).locked(),
            memory=memory,
        )

    async def reap(self) -> None:
        """For ever: end what was kept warm long enough, and the oldest when too many wait."""
        while True:
            try:
                # Together: where turns come and go by the dozen, one after the other falls behind.
                await at_a_time(REAP_AT_A_TIME, [self._reap_one(each) for each in self._too_warm()])
                for session_id in self.live.list_lost():
                    await self._end_lost(session_id)
            except Exception:  # the boundary: what cannot be reaped must not end the service
                log.exception("could not look for sandboxes to end")
            await asyncio.sleep(REAP_SECONDS)

    def _too_warm(self) -> Sequence[Live]:
        warm = [(live.warm_until, live) for live in self.live.all() if live.warm_until is not None]
        warm.sort(key=lambda each: each[0])
        too_many = len(warm) - self._warmth.most
        now = datetime.now(UTC)
        return [live for n, (until, live) in enumerate(warm) if n < too_many or until <= now]

    async def _reap_one(self, seen: Live) -> None:
        if self.lock(seen.session_id).locked():
            return
        async with self.lock(seen.session_id):
            live = self.live.get(seen.session_id)
            if live is None or live.warm_until != seen.warm_until:
                return  # it was used in between
            try:
                await self.end(live, _silent)
                log.info("sandbox %s ended after its warm time", live.sandbox_id)
            except HoldfastError as error:
                log.warning("sandbox %s did not end, trying again: %s", live.sandbox_id, error)

    async def _end_lost(self, session_id: UUID) -> None:
        """End the sandboxes of a session whose record could not be read: no turn would use them,
        and nothing says how long to keep them warm."""
        if self.lock(session_id).locked():
            return
        async with self.lock(session_id):
            if self.live.get(session_id) is not None:
                return  # a turn has made another one in between
            for provider in await self._usable():
                if (session_id, provider.name) in self._cleared:
                    continue
                try:
                    async for box in provider.list({"session": str(session_id)}):
                        await _destroy(provider, box.sandbox_id)
                        log.warning("ended sandbox %s, whose record was lost", box.sandbox_id)
                    await provider.release(str(session_id))
                except HoldfastError as error:
                    log.warning("cannot end the lost sandbox of %s: %s", session_id, error)
                else:
                    self._cleared.add((session_id, provider.name))


async def _trouble(provider: Durable) -> str:
    try:
        async with asyncio.timeout(ANSWER_SECONDS):
            return await provider.trouble()
    except TimeoutError:
        return f"{provider.name} does not answer within {ANSWER_SECONDS} s"


async def _memory(provider: Durable, info: SandboxInfo) -> int | None:
    """None where nobody tells."""
    if info.status is not Status.RUNNING:
        return None
    try:
        async with asyncio.timeout(MEASURE_SECONDS):
            return await provider.memory(info.sandbox_id) or None
    except (SandboxError, TimeoutError):
        return None


async def _destroy(provider: Durable, sandbox_id: str) -> bool:
    """End it and wait until its provider says that it is gone; False if it was gone already.

    Raises: Unreachable, when the provider does not say so; other SandboxError.
    """
    lived = await provider.destroy(sandbox_id)
    deadline = time.monotonic() + GONE_SECONDS
    while (status := await provider.status(sandbox_id)) is not Status.GONE:
        if time.monotonic() > deadline:
            message = f"the sandbox {sandbox_id} was told to end, and its status is {status}"
            raise Unreachable(message, op="destroy")
        await asyncio.sleep(GONE_POLL_SECONDS)
    return lived


async def _tell_restored(restored: Restored, emit: Emit) -> None:
    if restored:
        await emit(
            events.WorkspaceRestored(
                symlinks=restored.symlinks,
                modes=restored.modes,
                mtimes=restored.mtimes,
                directories=restored.directories,
                took=restored.took,
                problems=dict(restored.problems),
            )
        )


async def _tell_verified(verified: Verified | None, emit: Emit) -> None:
    if verified is not None:
        await emit(
            events.WorkspaceVerified(
                files=verified.files,
                of=verified.of,
                changed=list(verified.changed),
                took=verified.took,
            )
        )


async def _sweep_locks(sandbox: DurableSandbox, emit: Emit) -> None:
    """The box is new: whoever held a lock of git is dead."""
    removed = await sandbox.workspace.sweep_locks()
    if removed:
        reason = "no process of the session was left that could hold them"
        await emit(events.WorkspaceSwept(paths=removed, reason=reason))


async def _silent(_: events.EventBase) -> None:
    """A sandbox that ends between turns has no turn to tell."""
