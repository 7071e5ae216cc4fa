"""What a new sandbox finds mended is told in the turn's events."""

from __future__ import annotations

import asyncio
import uuid
from pathlib import Path
from typing import cast

import pytest

from contracts import events
from contracts.bodies import RunRequest
from sidecar.boxhost import processes
from sidecar.providers.base import Command
from sidecar.runs.gateway import Gateway
from sidecar.runs.live import LiveSandboxes
from sidecar.runs.sandboxes import Providers, Sandboxes, Warmth
from sidecar.workspace.host_mounted import MountedWorkspace
from tests.integration.workspace.conftest import HostOf


class NoModel:
    """In the gateway's place: no harness runs here."""

    def __init__(self, socket: Path) -> None:
        self._socket = socket

    async def open(self, _session_id: str) -> Path:
        return self._socket


@pytest.fixture
def request_of() -> RunRequest:
    return RunRequest(
        turn_id=uuid.uuid4(),
        session_id=uuid.uuid4(),
        epoch=1,
        prompt="x",
        harness="pi",
        provider="local",
    )


async def test_locks_that_were_swept_and_metadata_that_was_put_back_are_events(
    host_of: HostOf, geesefs: Path, short_dir: Path, request_of: RunRequest
) -> None:
    told: list[events.EventBase] = []

    async def emit(event: events.EventBase) -> None:
        told.append(event)

    gateway = cast(Gateway, NoModel(short_dir / "gw"))

    def by(engine: str) -> Sandboxes:
        live = LiveSandboxes(short_dir / "data")
        return Sandboxes(Providers({"local": host_of(engine)}, {}), gateway, live, Warmth(600, 8))

    first, _ = await by("weed").acquire(request_of, emit)
    make = "mkdir -p r/.git; touch r/.git/index.lock; echo 1 > f; chmod 755 f; ln -s f link"
    assert (await first.exec(Command(["sh", "-ec", make]))).exit_code == 0
    await first.workspace.barrier("turn", 1)
    assert isinstance(first.workspace, MountedWorkspace)
    daemon = first.workspace.mount.daemon
    processes.kill(daemon)
    async with asyncio.timeout(20):
        await processes.wait_gone(daemon, 10)
    later = by("geesefs")
    await later.providers["local"].destroy(first.id)
    told.clear()
    await later.acquire(request_of.model_copy(update={"epoch": 2}), emit)
    [swept] = [event for event in told if isinstance(event, events.WorkspaceSwept)]
    assert swept.paths == ["r/.git/index.lock"]
    [restored] = [event for event in told if isinstance(event, events.WorkspaceRestored)]
    assert (restored.symlinks, restored.problems) == (1, {})
    assert restored.modes >= 1
