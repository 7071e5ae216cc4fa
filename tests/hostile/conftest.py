from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.api.conftest import new_database as new_database
from tests.api.conftest import postgres_server as postgres_server
from tests.hostile.agent import HostileAgent

# The same examples every time, and no more than a run has time for.
settings.register_profile(
    "hostile",
    max_examples=80,
    derandomize=True,
    deadline=None,
    # a machine that is busy is no fault of the test's; fixtures here are not changed by a test
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
settings.load_profile("hostile")


@pytest.fixture
async def agent(short_dir: Path) -> AsyncIterator[HostileAgent]:
    hostile = HostileAgent()
    async with hostile.served(short_dir / "agent"):
        yield hostile
