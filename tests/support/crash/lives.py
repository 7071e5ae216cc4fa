"""Lives of a sidecar, each ending where it is told to, and every state that one could die in."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import os
import pickle
import shutil
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast
from unittest import mock

from contracts.bodies import RunRequest
from contracts.errors import RunNotFound
from sidecar.harnesses import agent_server
from sidecar.runs.engine import Runs
from sidecar.runs.live import LiveSandboxes
from sidecar.runs.sandboxes import Providers, Sandboxes, Warmth
from sidecar.runs.states import States
from sidecar.workspace.checkpoint import with_checkpoint
from sidecar.workspace.in_box import Parts
from sidecar.workspace.manifest import Manifests
from sidecar.workspace.store import Store, StoreAddress
from tests.support.crash.observed_loop import run_observed
from tests.support.crash.outside import (
    S3,
    Agents,
    AgentServer,
    BoxSandbox,
    Cloud,
    Keys,
    Outside,
    RecordingGateway,
    step,
)

BUCKET, STATE_BUCKET = "workspaces", "state"
ADDRESS = StoreAddress("http://store", "stack", "secret", BUCKET)
# Seconds on the clock of the loop, which jumps.
TURN_SECONDS = 3_600
COPY_SECONDS = 30
FULL_SECONDS = 60
START_AGAIN_SECONDS = 5


@dataclass(frozen=True)
class Moment:
    """All that is left when the sidecar dies: what is outside of it, as a pickle, and every file,
    None for a directory. `points` is at how many awaits and writes that is so."""

    pickled: bytes
    files: dict[str, bytes | None]
    points: int = 1

    @classmethod
    def now(cls, root: Path, outside: Outside) -> Moment:
        return cls(pickle.dumps(outside), read_files(root))

    @property
    def outside(self) -> Outside:
        """A copy."""
        found: Outside = pickle.loads(self.pickled)  # noqa: S301 - our own
        return found


@dataclass(frozen=True)
class Plan:
    """A turn, and what happens beside it."""

    request: RunRequest
    warm_seconds: float = 600
    cancel_after_prompts: int | None = None


@dataclass
class Watch:
    """Notes every state that differs from the one before. Whatever is in memory is lost with the
    process, so that two deaths in one state are the same death."""

    root: Path
    outside: Outside
    moments: list[Moment] = field(default_factory=list)
    _points: int = 0
    _written: bool = True
    _changes: int = -1

    def on_step(self) -> None:
        if self._written or self._changes != self.outside.changes:
            self._written, self._changes = False, self.outside.changes
            now = Moment.now(self.root, self.outside)
            if not self.moments or now != replace(self.moments[-1], points=1):
                self._close()
                self.moments.append(now)
        self._points += 1

    def on_write(self, _path: str, _takes_room: bool) -> None:
        self.on_step()
        self._written = True

    def _close(self) -> None:
        if self.moments:
            self.moments[-1] = replace(self.moments[-1], points=self._points)
        self._points = 0

    def end(self) -> list[Moment]:
        self._written = True
        self.on_step()
        self._close()
        return self.moments


@dataclass
class Disk:
    """The sidecar's. Has no room for what would be its `full_at`-th write, and for any other in the
    next FULL_SECONDS. `met` is what there was then; `serves` since the sidecar has started."""

    root: Path
    outside: Outside
    full_at: int
    met: Moment | None = None
    serves: bool = False
    _writes: int = 0
    _until: float = 0.0

    def on_write(self, path: str, takes_room: bool) -> None:
        if not (self.serves and takes_room and path.startswith(f"{self.root}/data")):
            return
        self._writes += 1
        if self._writes == self.full_at:
            self.met = Moment.now(self.root, self.outside)
            self._until = time.monotonic() + FULL_SECONDS
        if time.monotonic() < self._until:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)


def read_files(root: Path) -> dict[str, bytes | None]:
    found: dict[str, bytes | None] = {}
    for directory, directories, files in os.walk(root):
        place = directory.removeprefix(f"{root}").removeprefix("/")
        for name in directories:
            found[f"{place}/{name}" if place else name] = None
        for name in files:
            with open(f"{directory}/{name}", "rb") as file:  # noqa: PTH123 - a thousand times
                found[f"{place}/{name}" if place else name] = file.read()
    return found


def put_back(root: Path, moment: Moment) -> Outside:
    """The world as it was then."""
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir(parents=True)
    for name, data in sorted(moment.files.items()):
        path = root / name
        if data is None:
            path.mkdir(exist_ok=True)
        else:
            path.write_bytes(data)
    return moment.outside


def run_life(root: Path, outside: Outside, plan: Plan) -> Moment:
    """A sidecar from its start until the turn has ended; what there is then."""
    run_observed(_live(root, outside, plan), root, _ignore, _ignore_write)
    return Moment.now(root, outside)


def run_full_life(root: Path, outside: Outside, plan: Plan, full_at: int) -> Disk:
    """As `run_life`, with a disk that is full for a time."""
    disk = Disk(root, outside, full_at)
    run_observed(_live(root, outside, plan, disk=disk), root, _ignore, disk.on_write)
    return disk


def watch_life(root: Path, outside: Outside, plan: Plan) -> list[Moment]:
    """As `run_life`; the states that the sidecar could have died in, in order."""
    watch = Watch(root, outside)
    run_observed(_live(root, outside, plan, watch), root, watch.on_step, watch.on_write)
    return watch.moments


def _ignore() -> None: ...


def _ignore_write(_path: str, _takes_room: bool) -> None: ...


async def _live(
    root: Path,
    outside: Outside,
    plan: Plan,
    watch: Watch | None = None,
    disk: Disk | None = None,
) -> None:
    async with _sidecar(root, outside, plan) as runs:
        turn_id = plan.request.turn_id
        if disk is not None:
            disk.serves = True
        try:
            runs.get(turn_id)
        except RunNotFound:
            if outside.accepted:
                outside.wrongs.append("a run that was accepted is not known any more")
            await _start(runs, plan.request)
            outside.started += 1
        await step()
        outside.accepted = True
        outside.changes += 1
        async with asyncio.timeout(TURN_SECONDS):
            await _follow(runs, outside, plan)
            while any(run.turn_id == turn_id for run in runs.running()):
                await step()
        if watch is not None:
            watch.end()


async def _start(runs: Runs, request: RunRequest) -> None:
    """As an api does: again, when the sidecar could not."""
    async with asyncio.timeout(TURN_SECONDS):
        while True:
            try:
                await runs.start(request)
            except OSError:
                await asyncio.sleep(START_AGAIN_SECONDS)
            else:
                return


async def _follow(runs: Runs, outside: Outside, plan: Plan) -> None:
    """As an api does: store what comes, behind what it has stored. It asks for a cancel once: one
    that was acknowledged is the sidecar's to keep."""
    turn_id = plan.request.turn_id
    after = json.loads(outside.shown[-1])["n"] if outside.shown else 0
    async for part in await runs.follow(turn_id, after):
        outside.shown += part.splitlines()
        outside.changes += 1
        await step()
        wanted = plan.cancel_after_prompts
        if wanted is not None and len(outside.prompts) >= wanted and not outside.cancelled:
            runs.cancel(turn_id)
            outside.cancelled = True
            outside.changes += 1


@contextlib.asynccontextmanager
async def _sidecar(root: Path, outside: Outside, plan: Plan) -> AsyncIterator[Runs]:
    disks = root / "disks"
    disks.mkdir(exist_ok=True)
    agents, cloud = Agents(outside, disks), Cloud(outside, disks)
    store = Store(cast(Any, S3(outside)), BUCKET)
    state = store.in_bucket(STATE_BUCKET)
    parts = Parts(store, Manifests(state), cast(Any, Keys(outside)), ADDRESS)

    @contextlib.asynccontextmanager
    async def open_store(address: StoreAddress) -> AsyncIterator[Store]:
        yield Store(cast(Any, S3(outside, address.access_key)), address.bucket)

    @contextlib.asynccontextmanager
    async def connect(sandbox: Any) -> AsyncIterator[AgentServer]:
        inner: BoxSandbox = sandbox._sandbox
        yield AgentServer(outside, agents, inner.box)

    durable = with_checkpoint(cast(Any, cloud), parts, COPY_SECONDS, "")
    sandboxes = Sandboxes(
        Providers({cloud.name: durable}, {cloud.name: durable}),
        cast(Any, RecordingGateway(outside)),
        LiveSandboxes(root / "data"),
        Warmth(plan.warm_seconds, 5),
    )
    with (
        mock.patch.object(Store, "open", open_store),
        mock.patch.object(agent_server, "connect", connect),
    ):
        await cloud.thaw_all()
        async with Runs.open(root / "data", sandboxes, States(state), {}) as runs:
            yield runs
