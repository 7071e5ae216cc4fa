"""The account's sandboxes: what they are, how they change, and when they do it by themselves.

A sandbox has a state and a state that is wanted of it. While the two differ, a change is under way,
and whoever asks for another one gets 409, as from the real API.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from emulators.boxes import Box, BoxError, Boxes
from emulators.daytona.clock import Clock
from emulators.daytona.daemon import Daemon
from emulators.daytona.notifications import Notifications
from emulators.daytona.sessions import Session
from emulators.daytona.wire import ORGANIZATION, Refused, instant

MINUTE = 60
DEFAULT_AUTO_STOP = 15
DEFAULT_AUTO_ARCHIVE = 7 * 24 * 60
LONGEST_AUTO_ARCHIVE = 30 * 24 * 60  # what an interval of 0 means there
LOOK_SECONDS = 0.2  # how often leases are looked at; the real API does every 10 s
TARGET = "us"


@dataclass
class Sandbox:
    id: str
    name: str
    snapshot: str
    user: str
    env: Mapping[str, str]
    labels: dict[str, str]
    public: bool
    target: str
    created_at: float
    active_at: float
    # minutes: 0 for never, in the last one a negative number
    auto_stop: int
    auto_archive: int
    auto_delete: int
    destroy_at: float | None = None
    state: str = "creating"
    desired: str = "started"
    error: str | None = None
    recoverable: bool = False
    # the preview token; every start makes a new one
    token: str = ""
    box: Box | None = None
    daemon: Daemon | None = None
    sessions: dict[str, Session] = field(default_factory=dict)
    settled: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def changing(self) -> bool:
        return self.state not in (self.desired, "error")

    @property
    def ephemeral(self) -> bool:
        return self.auto_delete == 0


class Sandboxes:
    def __init__(self, boxes: Boxes, clock: Clock, notifications: Notifications) -> None:
        self._boxes = boxes
        self._clock = clock
        self._notifications = notifications
        self._all: dict[str, Sandbox] = {}
        self._changes: set[asyncio.Task[None]] = set()
        self.toolbox_url = ""
        self.most: int | None = None  # of one processor each, as all are

    @contextlib.asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        """Changes go on, and leases end, within the block. Boxes are left to who opened them."""
        watching = asyncio.create_task(self._watch())
        try:
            yield
        finally:
            watching.cancel()
            await asyncio.wait({watching, *self._changes})
        for change in self._changes:
            change.result()

    def all(self) -> list[Sandbox]:
        return sorted(self._all.values(), key=lambda sandbox: (-sandbox.created_at, sandbox.id))

    def named(self, id_or_name: str) -> Sandbox | None:
        found = self._all.get(id_or_name)
        return found or next((s for s in self._all.values() if s.name == id_or_name), None)

    def find(self, id_or_name: str) -> Sandbox:
        """Raises: Refused 404."""
        found = self.named(id_or_name)
        if found is None:
            raise Refused(404, f"Sandbox with ID or name {id_or_name} not found")
        return found

    def active(self, sandbox: Sandbox) -> None:
        """Something was asked of it: its idle time begins anew."""
        sandbox.active_at = self._clock.now()

    def create(self, body: Mapping[str, Any], snapshot: str) -> Sandbox:
        """Begin to make one. Raises: Refused 409, for a name in use; 400, for one too many."""
        sandbox_id = str(uuid.uuid4())
        name = body.get("name") or sandbox_id
        if self.named(name) is not None:
            raise Refused(409, f"Sandbox with name {name} already exists")
        if self.most is not None and len(self._all) >= self.most:
            raise Refused(400, f"Total CPU limit exceeded. Maximum allowed: {self.most}.")
        now = self._clock.now()
        sandbox = Sandbox(
            id=sandbox_id,
            name=name,
            snapshot=snapshot,
            user=body.get("user") or "daytona",
            env=body.get("env") or {},
            labels=dict(body.get("labels") or {}),
            public=bool(body.get("public")),
            target=body.get("target") or TARGET,
            created_at=now,
            active_at=now,
            auto_stop=_given(body, "autoStopInterval", DEFAULT_AUTO_STOP),
            auto_archive=_given(body, "autoArchiveInterval", DEFAULT_AUTO_ARCHIVE),
            auto_delete=_given(body, "autoDeleteInterval", -1),
        )
        self.live_for(sandbox, _given(body, "ttlMinutes", 0))
        self._all[sandbox.id] = sandbox
        self._notifications.tell("sandbox.created", self.shown(sandbox))
        self._change(sandbox, self._started)
        return sandbox

    def live_for(self, sandbox: Sandbox, minutes: int) -> None:
        """Destroy it that long from now, in whatever state it is; 0: do not."""
        sandbox.destroy_at = self._clock.now() + minutes * MINUTE if minutes else None

    def start(self, sandbox: Sandbox) -> None:
        """Raises: Refused."""
        if sandbox.state == sandbox.desired == "started":
            return
        self._check_settled(sandbox)
        if sandbox.state not in ("stopped", "archived"):
            raise Refused(400, "Sandbox is not in valid state")
        sandbox.desired = "started"
        self._show(sandbox, "restoring" if sandbox.state == "archived" else "starting")
        self._change(sandbox, self._started)

    def stop(self, sandbox: Sandbox) -> None:
        """An ephemeral sandbox is destroyed by it. Raises: Refused."""
        self._check_settled(sandbox)
        if sandbox.state != "started":
            raise Refused(400, "Sandbox is not in a stoppable state")
        if sandbox.ephemeral:
            self.destroy(sandbox)
            return
        sandbox.desired = "stopped"
        self._show(sandbox, "stopping")
        self._change(sandbox, self._stopped)

    def recover(self, sandbox: Sandbox) -> None:
        """Raises: Refused."""
        if sandbox.state != "error" or not sandbox.recoverable:
            raise Refused(400, "Sandbox is not in a recoverable state")
        sandbox.error, sandbox.recoverable, sandbox.desired = None, False, "started"
        self._show(sandbox, "starting")
        self._change(sandbox, self._started)

    def archive(self, sandbox: Sandbox) -> None:
        """Raises: Refused."""
        self._check_settled(sandbox)
        if sandbox.state != "stopped":
            raise Refused(400, "Sandbox is not stopped")
        sandbox.desired = "archived"
        self._show(sandbox, "archiving")
        self._change(sandbox, self._archived)

    def destroy(self, sandbox: Sandbox) -> None:
        """Its name is free from now on. Raises: Refused."""
        if sandbox.desired == "destroyed" or sandbox.changing:
            raise Refused(409, "Sandbox state change in progress")
        sandbox.desired = "destroyed"
        sandbox.name = f"DESTROYED_{sandbox.name}_{int(self._clock.now() * 1000)}"
        self._show(sandbox, "destroying")
        self._change(sandbox, self._destroyed)

    async def expire(self, sandbox: str) -> bool:
        """A lever: it was idle for too long, whatever happened before."""
        found = await self._at_rest(sandbox)
        if found is None:
            return False
        if found.state == "started":
            self.stop(found)
            await found.settled.wait()
        return True

    async def delete(self, sandbox: str) -> bool:
        """A lever: somebody else has deleted it."""
        found = await self._at_rest(sandbox)
        if found is None:
            return False
        self.destroy(found)
        await found.settled.wait()
        return True

    async def break_down(self, sandbox: str, *, recoverable: bool) -> bool:
        """A lever: something happened to the machine that it is on."""
        found = await self._at_rest(sandbox)
        if found is None or found.box is None:
            return False
        await self._end_processes(found)
        await found.box.stop()
        found.error, found.recoverable = "no space left on device", recoverable
        self._show(found, "error")
        return True

    async def _at_rest(self, sandbox: str) -> Sandbox | None:
        while (found := self.named(sandbox)) is not None and found.changing:
            await found.settled.wait()
        return found

    async def pass_time(self, seconds: float) -> None:
        """Let time pass, and everything happen that is due by then."""
        self._clock.advance(seconds)
        self._do_what_is_due()
        for sandbox in self.all():
            while sandbox.changing and sandbox.id in self._all:
                await sandbox.settled.wait()

    def shown(self, sandbox: Sandbox) -> dict[str, Any]:
        return {
            "id": sandbox.id,
            "organizationId": ORGANIZATION,
            "name": sandbox.name,
            "snapshot": sandbox.snapshot,
            "user": sandbox.user,
            "env": dict(sandbox.env),
            "labels": sandbox.labels,
            "public": sandbox.public,
            "networkBlockAll": False,
            "kvm": False,
            "target": sandbox.target,
            "cpu": 1,
            "gpu": 0,
            "memory": 1,
            "disk": 3,
            "state": sandbox.state,
            "desiredState": sandbox.desired,
            "errorReason": sandbox.error,
            "recoverable": sandbox.recoverable,
            "backupState": "None",
            "autoStopInterval": sandbox.auto_stop,
            "autoArchiveInterval": sandbox.auto_archive,
            "autoDeleteInterval": sandbox.auto_delete,
            "autoDestroyAt": instant(sandbox.destroy_at) if sandbox.destroy_at else None,
            "createdAt": instant(sandbox.created_at),
            "updatedAt": instant(sandbox.active_at),
            "lastActivityAt": instant(sandbox.active_at),
            "sandboxClass": "container",
            "toolboxProxyUrl": self.toolbox_url,
        }

    def _check_settled(self, sandbox: Sandbox) -> None:
        if sandbox.changing:
            raise Refused(409, "Sandbox state change in progress")
        if sandbox.state == "error":
            raise Refused(400, f"Sandbox is in error state: {sandbox.error}")

    def _show(self, sandbox: Sandbox, state: str) -> None:
        before, sandbox.state = sandbox.state, state
        self._notifications.tell(
            "sandbox.state.updated",
            {"sandbox": self.shown(sandbox), "oldState": before, "newState": state},
        )

    def _change(self, sandbox: Sandbox, change: Callable[[Sandbox], Awaitable[None]]) -> None:
        sandbox.settled.clear()
        done = {task for task in self._changes if task.done() and task.exception() is None}
        self._changes -= done
        self._changes.add(asyncio.create_task(self._settle(sandbox, change)))

    async def _settle(self, sandbox: Sandbox, change: Callable[[Sandbox], Awaitable[None]]) -> None:
        try:
            await change(sandbox)
        except (BoxError, OSError) as error:
            sandbox.error = str(error)
        finally:
            if sandbox.changing:
                self._show(sandbox, "error")
            sandbox.settled.set()

    async def _started(self, sandbox: Sandbox) -> None:
        if sandbox.box is None:
            env = {**sandbox.env, "DAYTONA_SANDBOX_ID": sandbox.id}
            sandbox.box = await self._boxes.create(sandbox.id, env)
        else:
            await sandbox.box.start()
        sandbox.daemon = await Daemon.start(sandbox.box)
        sandbox.token = secrets.token_hex(16)
        self.active(sandbox)
        self._show(sandbox, "started")

    async def _stopped(self, sandbox: Sandbox) -> None:
        await self._end_processes(sandbox)
        assert sandbox.box is not None
        await sandbox.box.stop()
        self.active(sandbox)
        self._show(sandbox, "stopped")

    async def _archived(self, sandbox: Sandbox) -> None:
        self._show(sandbox, "archived")

    async def _destroyed(self, sandbox: Sandbox) -> None:
        await self._end_processes(sandbox)
        if sandbox.box is not None:
            await sandbox.box.destroy()
        del self._all[sandbox.id]
        self._show(sandbox, "destroyed")

    async def _end_processes(self, sandbox: Sandbox) -> None:
        for session in sandbox.sessions.values():
            await session.forget()
        sandbox.sessions.clear()
        sandbox.daemon = None

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            self._do_what_is_due()

    def _do_what_is_due(self) -> None:
        now = self._clock.now()
        for sandbox in self.all():
            if sandbox.changing:
                continue
            idle = (now - sandbox.active_at) / MINUTE
            stopped = sandbox.state == "stopped"
            archive_after = sandbox.auto_archive or LONGEST_AUTO_ARCHIVE
            if (sandbox.destroy_at is not None and now >= sandbox.destroy_at) or (
                stopped and 0 <= sandbox.auto_delete <= idle
            ):
                self.destroy(sandbox)
            elif sandbox.state == "started" and 0 < sandbox.auto_stop <= idle:
                self.stop(sandbox)
            elif stopped and archive_after <= idle:
                self.archive(sandbox)


def _given(body: Mapping[str, Any], name: str, default: int) -> int:
    value = body.get(name)
    return default if value is None else int(value)
