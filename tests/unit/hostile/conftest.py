from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support import examples as examples
from tests.support.hostile_agent import HostileAgent


@pytest.fixture
async def agent(short_dir: Path) -> AsyncIterator[HostileAgent]:
    hostile = HostileAgent()
    async with hostile.served(short_dir / "agent"):
        yield hostile
