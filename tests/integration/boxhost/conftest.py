from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from sidecar.boxhost.boxes import Boxes, BoxSpec


@pytest.fixture
async def boxes(short_dir: Path, bwrap: Path) -> AsyncIterator[Boxes]:
    host = Boxes(short_dir / "data", short_dir / "run", bwrap)
    yield host
    await host.stop_all()


@pytest.fixture
def spec(short_dir: Path) -> BoxSpec:
    session_dir = short_dir / "session"
    (session_dir / "workspace").mkdir(parents=True)
    return BoxSpec("box-1", "session-1", {"session": "session-1"}, session_dir, short_dir / "gw")
