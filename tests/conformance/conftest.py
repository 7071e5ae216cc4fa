"""One provider after the other, each with a directory that stands for a mounted workspace."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import AsyncIterator
from pathlib import Path
from uuid import uuid4

import pytest

from sidecar.boxhost.boxes import Boxes
from sidecar.boxhost.client import RemoteHost
from sidecar.boxhost.in_process import OwnBoxes
from sidecar.boxhost.mounts import Mounts
from sidecar.providers.base import Provider, Sandbox, SandboxSpec
from sidecar.providers.docker import DockerHost, DockerProvider
from sidecar.providers.local import LocalProvider
from tests.boxhost.served import Place, served
from tests.services import short_directory


@pytest.fixture(scope="session")
async def service(bwrap: Path) -> AsyncIterator[tuple[Place, RemoteHost]]:
    with short_directory() as home:
        place = Place(home, bwrap)
        async with served(place) as host:
            yield place, host


@contextlib.asynccontextmanager
async def docker_provider(directory: Path, image: str) -> AsyncIterator[DockerProvider]:
    host = DockerHost(
        socket=Path("/var/run/docker.sock"),
        image=image,
        stack=secrets.token_hex(4),
        run_dir=directory / "run",
        mounts_root=directory / "data" / "mounts",
        run_root=directory / "run",
        memory=1 << 30,
        cpus=2,
        pids=512,
    )
    async with DockerProvider.open(host) as provider:
        yield provider
        async for info in provider.list({}):
            await provider.destroy(info.sandbox_id)


@pytest.fixture(params=["local", "local by a box-host", "docker"])
def home(request: pytest.FixtureRequest, short_dir: Path) -> Path:
    """Where the provider keeps its things: our own directory, or a service's."""
    if request.param == "local by a box-host":
        place: Place = request.getfixturevalue("service")[0]
        return place.home
    return short_dir


@pytest.fixture
async def provider(
    request: pytest.FixtureRequest, home: Path, short_dir: Path, bwrap: Path
) -> AsyncIterator[Provider]:
    if request.node.callspec.params["home"] == "docker":
        image = request.getfixturevalue("sandbox_image")
        async with docker_provider(home, image) as made:
            yield made
        return
    boxes = Boxes(home / "data", home / "run", bwrap)
    if home == short_dir:
        yield LocalProvider(OwnBoxes(boxes, {}))
    else:
        yield LocalProvider(request.getfixturevalue("service")[1].boxes)
    await boxes.stop_all()


@pytest.fixture
async def spec(home: Path) -> AsyncIterator[SandboxSpec]:
    session = str(uuid4())
    mounts = Mounts(home / "data")
    session_dir = mounts.parent(session)
    (session_dir / "workspace").chmod(0o777)
    gateway = home / "run" / "gateway" / session / "sock"
    gateway.parent.mkdir(parents=True)
    gateway.touch()
    home.chmod(0o755)  # a container's user must get through
    labels = {"session": session, "epoch": "1"}
    yield SandboxSpec(f"{session}-1", session, labels, gateway, session_dir)
    await mounts.forget(session)


@pytest.fixture
async def sandbox(provider: Provider, spec: SandboxSpec) -> Sandbox:
    return await provider.create(spec)
