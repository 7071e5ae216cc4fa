"""What every test may ask for. HOLDFAST_REQUIRE names what must be there: a skip is a failure."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import NoReturn

import aioboto3
import pytest

from sidecar.workspace.store import Store, StoreAddress
from stack.install.bubblewrap import install_bwrap
from stack.settings import Settings
from tests.services import SeaweedFS, seaweedfs, short_directory

STATE_BUCKET = "state"
REQUIRED = frozenset(filter(None, os.environ.get("HOLDFAST_REQUIRE", "").split(",")))


def missing(what: str, reason: str) -> NoReturn:
    """Skip for want of `what`, or fail where the run requires it."""
    if what in REQUIRED:
        pytest.fail(f"{what} is required here: {reason}")
    pytest.skip(reason)


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


@pytest.fixture(scope="session")
async def store_service() -> AsyncIterator[SeaweedFS]:
    with short_directory() as path:
        async with seaweedfs(path) as service:
            yield service


@pytest.fixture(scope="session")
async def address(store_service: SeaweedFS) -> StoreAddress:
    """The store's workspaces; other buckets are beside them, which the tests share."""
    found = StoreAddress(
        store_service.endpoint, store_service.access_key, store_service.secret_key, "workspaces"
    )
    async with aioboto3.Session().client(
        "s3",
        endpoint_url=found.endpoint,
        aws_access_key_id=found.access_key,
        aws_secret_access_key=found.secret_key,
        region_name="us-east-1",
    ) as s3:
        for bucket in (found.bucket, "elsewhere", STATE_BUCKET):
            with contextlib.suppress(s3.exceptions.BucketAlreadyOwnedByYou):
                await s3.create_bucket(Bucket=bucket)
    return found


@pytest.fixture
async def store(address: StoreAddress) -> AsyncIterator[Store]:
    async with Store.open(address) as opened:
        yield opened
