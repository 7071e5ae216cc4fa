from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.engine_proxy.running import Proxy, RecordingEngine, proxy_settings, running_proxy


@pytest.fixture
async def engine(short_dir: Path) -> AsyncIterator[RecordingEngine]:
    recording = RecordingEngine()
    async with recording.at(short_dir / "engine.sock"):
        yield recording


@pytest.fixture
async def proxy(short_dir: Path, engine: RecordingEngine) -> AsyncIterator[Proxy]:
    async with running_proxy(proxy_settings(short_dir)) as running:
        yield running
