from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from sidecar.boxhost.boxes import Boxes
from sidecar.providers.base import SandboxSpec
from sidecar.providers.local import LocalProvider, LocalSandbox


@pytest.fixture
async def local(short_dir: Path, bwrap: Path) -> AsyncIterator[LocalProvider]:
    boxes = Boxes(short_dir / "data", short_dir / "run", bwrap)
    yield LocalProvider(boxes, {})
    await boxes.stop_all()


@pytest.fixture
def spec(short_dir: Path) -> SandboxSpec:
    session_dir = short_dir / "session"
    (session_dir / "workspace").mkdir(parents=True)
    (session_dir / "workspace").chmod(0o777)
    labels = {"session": "session-1"}
    return SandboxSpec("key-1", "session-1", labels, short_dir / "gw", session_dir)


@pytest.fixture
async def sandbox(local: LocalProvider, spec: SandboxSpec) -> LocalSandbox:
    return await local.create(spec)
