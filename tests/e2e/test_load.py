"""A small load on a whole stack."""

from __future__ import annotations

import pytest
from rich.console import Console

from bench.load import PYTHON, Load, run
from stack.install.everything import find_everything
from stack.settings import Settings
from tests.support.requirements import missing


@pytest.mark.stack
async def test_a_small_load_loses_nothing(fuse: None) -> None:
    if not PYTHON.exists():
        missing("python", f"boxes have no {PYTHON}")
    load = Load(sessions=10, turns=5, followers=20, seconds=10, pieces=20, pause=0.05)
    result = await run(load, find_everything(Settings()), Console(quiet=True))
    assert result["ok"], result
    assert result["lost"] == 0
    assert result["ends"].keys() == {"turn.completed"}
    assert result["delivered"] == 2 * result["events"], "two followers of each session"
    assert result["leaks"] == 0
