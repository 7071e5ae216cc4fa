"""Every provider once, every harness once, and moves between them; the whole is in
scripts/matrix-emulated."""

from __future__ import annotations

import pytest

from client import Holdfast
from client.matrix import Cell, run_cell
from client.trials import How, Moving, Place, Trial, open_bucket
from contracts.events import MountReady, Receipt
from tests.clouds.conftest import Clouds
from tests.support.light_agent.tree import LIGHT


def passed(cell: Cell) -> None:
    assert (cell.verdict, cell.reason) == ("PASS", "")


def how(clouds: Clouds) -> How:
    return How("checkpoint" if clouds.workspace == "checkpoint" else "geesefs")


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("provider", "harness"),
    [("e2b", "claude"), ("modal", "codex"), ("daytona", "opencode"), ("docker", "pi")],
)
async def test_a_session_survives_its_sandbox(
    clouds: Clouds, hf: Holdfast, provider: str, harness: str
) -> None:
    place = Place(harness, provider)
    async with open_bucket(clouds.store()) as bucket:
        passed(await run_cell(Trial(hf, bucket, place, how(clouds)), place, lambda _: None))


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("one", "other"), [("e2b", "local"), ("local", "modal"), ("modal", "daytona")]
)
async def test_a_session_moves_to_another_provider_in_its_middle(
    clouds: Clouds, hf: Holdfast, one: str, other: str
) -> None:
    place, then = Place(**LIGHT, provider=one), Place(**LIGHT, provider=other)
    async with open_bucket(clouds.store()) as bucket:
        trial = Moving(hf, bucket, place, then, how(clouds))
        passed(await run_cell(trial, place, lambda _: None))


async def test_a_cloud_says_how_its_workspace_is_there(clouds: Clouds, hf: Holdfast) -> None:
    session = await hf.sessions.create(**LIGHT, provider="daytona")
    events = [event async for event in hf.turns.run(session.id, "write hello to hello.txt")]
    ready = next(event for event in events if isinstance(event, MountReady))
    receipt = next(event for event in events if isinstance(event, Receipt))
    assert ready.engine == receipt.engine == clouds.workspace
    assert ready.why
    assert receipt.window == (3.0 if clouds.workspace == "checkpoint" else None)
    await hf.sessions.delete(session.id)
