"""One project of docker-compose.yml for all tests of this folder; its images are built once."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from client import Holdfast
from tests.compose.running import Compose, compose_project
from tests.support.paths import ROOT

BUILD_SECONDS = 900


@pytest.fixture(scope="session")
def images(docker: Path, sandbox_image: str) -> None:
    """What this checkout is built into: seconds where `make images` has just run."""
    command = shutil.which("docker")
    assert command is not None
    subprocess.run(
        [command, "compose", "--profile", "emulated", "build", "--quiet"],
        cwd=ROOT,
        env={**os.environ, "COMPOSE_ENV_FILES": "/dev/null"},
        timeout=BUILD_SECONDS,
        check=True,
    )


@pytest.fixture(scope="package")
async def stack(images: None, fuse: None) -> AsyncIterator[Compose]:
    """Up, without profiles until a test asks for `emulated`."""
    async with compose_project() as running:
        await running.up()
        yield running
    assert await running.left("container", "-a") == []
    assert await running.left("network") == []
    assert await running.left("volume") == []
    mounts = Path("/proc/self/mountinfo").read_text().splitlines()
    assert [line for line in mounts if running.project in line] == []


@pytest.fixture
async def emulated(stack: Compose) -> Compose:
    """The same project with emulated clouds; a test that takes it down has brought it back so."""
    if not stack.emulated:
        await stack.down()
        await stack.come_back_emulated()
    return stack


@pytest.fixture
async def hf(stack: Compose) -> AsyncIterator[Holdfast]:
    async with stack.client() as client:
        yield client
