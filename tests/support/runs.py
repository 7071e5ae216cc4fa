"""Requests of runs, and runs that come no further than their gateway."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from uuid import UUID, uuid4

from contracts.bodies import RunBody, RunRequest, Terms
from contracts.errors import Unavailable
from sidecar.runs.engine import Runs
from sidecar.runs.gateway import Gateway
from sidecar.runs.live import LiveSandboxes
from sidecar.runs.sandboxes import Providers, Sandboxes, Warmth
from sidecar.runs.states import States
from sidecar.workspace.store import Store


def request_of(session_id: UUID, epoch: int = 1) -> RunRequest:
    return RunRequest(
        turn_id=uuid4(),
        session_id=session_id,
        epoch=epoch,
        prompt="p",
        harness="pi",
        provider="local",
    )


class SlowGateway(Gateway):
    """A gateway that is away: a turn begins when it is let go, and fails then."""

    def __init__(self) -> None:
        super().__init__(Path("no.sock"), tries=1, pause_seconds=0)
        self.let_go = asyncio.Event()

    async def open(self, session_id: str, terms: Terms | None = None) -> Path:
        await self.let_go.wait()
        raise Unavailable("the model gateway is away")


@contextlib.asynccontextmanager
async def opened_runs(data_dir: Path, gateway: Gateway | None = None) -> AsyncIterator[Runs]:
    """The runs of a sidecar that has no provider. Without a gateway every turn fails at once."""
    away = gateway or Gateway(data_dir / "no.sock", tries=1, pause_seconds=0)
    live = LiveSandboxes(data_dir)
    sandboxes = Sandboxes(Providers({}, {}), away, live, Warmth(60, 5))
    store: Store = NotImplemented  # nothing comes so far as to ask it
    async with Runs.open(data_dir, sandboxes, States(store), {}) as runs:
        yield runs
    await away.aclose()


async def ended(runs: Runs, turn_id: UUID) -> RunBody:
    """The run, when it has ended."""
    async with asyncio.timeout(20):
        while (run := runs.get(turn_id)).state != "ended":
            await asyncio.sleep(0.01)
    return run
