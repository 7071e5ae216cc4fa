"""A session has one sandbox: which one a turn gets when its cloud fails, and when its box is gone.

Decided by the sidecar's own hands, with what they are made of.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import cast
from uuid import UUID, uuid4

import pytest

from contracts import events
from contracts.bodies import RunRequest
from contracts.errors import SandboxError
from sidecar.providers.base import Command
from sidecar.runs.gateway import Gateway as GatewayLine
from sidecar.runs.live import LiveSandboxes
from sidecar.runs.sandboxes import Providers, Sandboxes, Warmth
from sidecar.workspace.engine import Durable
from tests.integration.conformance import ways
from tests.integration.conformance.conftest import Subject
from tests.integration.conformance.test_lives import listed
from tests.integration.conformance.ways import CLOUDS, Levers
from tests.support.gateway import Gateway, gateway

WAYS = CLOUDS
ENGINES = ("checkpoint",)


@dataclass
class Tenant:
    """A session and its turns. `hurried` is a sidecar that has little patience with a cloud."""

    sandboxes: Sandboxes
    hurried: Sandboxes
    provider: str
    session_id: UUID
    epoch: int = 0

    async def turn(self, sandboxes: Sandboxes | None = None) -> tuple[str, list[str]]:
        """The sandbox of the next turn, and what is told of it."""
        told: list[str] = []

        async def emit(event: events.EventBase) -> None:
            told.append(str(event.model_dump()["type"]))

        self.epoch += 1
        request = RunRequest(
            turn_id=uuid4(),
            session_id=self.session_id,
            epoch=self.epoch,
            prompt="any",
            harness="claude",
            provider=self.provider,
        )
        sandbox, _ = await (sandboxes or self.sandboxes).acquire(request, emit)
        assert (await sandbox.exec(Command(["true"]))).exit_code == 0
        return sandbox.id, told


@pytest.fixture(scope="module")
async def model_gateway() -> AsyncIterator[Gateway]:
    async with gateway() as running:
        yield running


@pytest.fixture
async def tenant(subject: Subject, model_gateway: Gateway, tmp_path: Path) -> AsyncIterator[Tenant]:
    line = GatewayLine(model_gateway.control)
    name = subject.provider.name

    def by(durable: Durable) -> Sandboxes:
        return Sandboxes(
            Providers({name: durable}, {}),
            line,
            LiveSandboxes(tmp_path),
            Warmth(seconds=600, most=10),
        )

    assert subject.with_patience is not None
    async with subject.with_patience(ways.hurried(subject.way)) as hurried:
        found = Tenant(by(subject.durable), by(cast("Durable", hurried)), name, uuid4())
        yield found
        await found.sandboxes.release(found.session_id)
    await line.aclose()


async def test_no_failure_of_a_cloud_ever_gives_a_session_a_second_box(
    subject: Subject, tenant: Tenant, levers: Levers
) -> None:
    session = str(tenant.session_id)
    first, _ = await tenant.turn()
    for fault in ("503", "reset", "hang"):
        for broken in (levers.break_control, levers.break_data):
            await broken(fault)
            with pytest.raises(SandboxError):
                await tenant.turn(tenant.hurried)
            assert await levers.mend() > 0
            assert await listed(subject.bare, session) == [first], fault
    assert await tenant.turn() == (first, ["sandbox.attached"])


async def test_a_deleted_box_always_leads_to_a_new_one(
    subject: Subject, tenant: Tenant, levers: Levers
) -> None:
    first, _ = await tenant.turn()
    await levers.delete(first)
    second, told = await tenant.turn()
    assert second != first
    assert told[:2] == ["sandbox.gone", "sandbox.creating"]
    assert await listed(subject.bare, str(tenant.session_id)) == [second]
