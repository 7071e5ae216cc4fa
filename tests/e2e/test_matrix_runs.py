"""The matrix, started through the api, on the real stack."""

from __future__ import annotations

import asyncio

from client import Holdfast
from client.matrix import STEPS
from contracts.bodies import MatrixRun


async def test_a_cell_passes_and_its_steps_are_seen_as_they_go(hf: Holdfast) -> None:
    before = [each.id for each in await hf.matrix.list()]
    run = await hf.matrix.start(harnesses=["pi"], providers=["local"])
    seen: list[str] = []

    async def look() -> MatrixRun:
        found = await hf.matrix.get(run.id)
        assert found.cells is not None
        step = found.cells[0].step
        if step is not None and step not in seen:
            seen.append(step)
        return found

    async with asyncio.timeout(120):
        while (told := await look()).state == "running":
            await asyncio.sleep(0.05)
    assert (told.state, told.passed, told.error) == ("completed", 1, None), told
    assert told.cells is not None
    assert tuple(step.name for step in told.cells[0].steps) == STEPS
    assert len(seen) >= 2
    assert seen == [name for name in STEPS if name in seen]
    assert told.cells[0].engine is not None
    assert [each.id for each in await hf.matrix.list()] == [run.id, *before]
