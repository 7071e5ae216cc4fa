"""What every test may ask for of the machine."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from stack.install.bubblewrap import install_bwrap
from stack.settings import Settings
from tests.support.paths import ROOT
from tests.support.requirements import missing
from tests.support.services import short_directory

pytest_plugins = ["tests.support.report"]

# What takes longest comes first, so that no worker is left alone with it at the end.
TIERS = ("compose", "clouds", "e2e", "ui", "integration", "unit")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Order the tiers, and keep the tests of a file on one worker: they share its fixtures."""
    items.sort(key=lambda item: TIERS.index(_tier(item)))
    for item in items:
        if item.get_closest_marker("xdist_group") is None:
            item.add_marker(pytest.mark.xdist_group(item.path.relative_to(ROOT).as_posix()))


def _tier(item: pytest.Item) -> str:
    return item.path.relative_to(ROOT / "tests").parts[0]


@pytest.fixture(scope="session")
def bwrap() -> Path:
    return install_bwrap(Settings())


@pytest.fixture(scope="session")
def fuse() -> None:
    try:
        os.close(os.open("/dev/fuse", os.O_RDWR))
    except OSError as error:
        missing("fuse", f"/dev/fuse cannot be opened: {error}")


@pytest.fixture(scope="session")
def geesefs() -> Path:
    found = shutil.which("geesefs")
    if found is None:
        missing("geesefs", "no geesefs on PATH")
    return Path(found)


@pytest.fixture(scope="session")
def docker() -> Path:
    """The socket of a Docker engine that answers."""
    engine = Path("/var/run/docker.sock")
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            probe.connect(str(engine))
    except OSError as error:
        missing("docker", f"no Docker engine at {engine}: {error}")
    return engine


@pytest.fixture(scope="session")
def sandbox_image(docker: Path) -> str:
    """The image of container sandboxes."""
    image = os.environ.get("HOLDFAST_SANDBOX_IMAGE", "holdfast-sandbox:latest")
    command = shutil.which("docker")
    if command is None:
        missing("docker", "no docker on PATH")
    asked = subprocess.run(
        [command, "image", "inspect", image],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    if asked.returncode != 0:
        missing("docker", asked.stderr.strip())
    return image


@pytest.fixture
def short_dir() -> Iterator[Path]:
    with short_directory() as path:
        yield path
