from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Protocol

import pytest

from sidecar.boxhost.boxes import Boxes
from sidecar.boxhost.daemons import Daemons, Geesefs, Weed
from sidecar.boxhost.in_process import OwnBoxes, OwnMounts
from sidecar.boxhost.mounts import Mounts
from sidecar.providers.local import LocalProvider
from sidecar.workspace.geesefs import with_geesefs
from sidecar.workspace.host_mounted import HostMounted
from sidecar.workspace.iam import SessionKeys
from sidecar.workspace.manifest import Manifests
from sidecar.workspace.store import Store, StoreAddress
from sidecar.workspace.weed import with_weed
from stack.install.binaries import find_weed
from stack.settings import Settings
from tests.support.services import STATE_BUCKET as STATE_BUCKET
from tests.support.services import SeaweedFS


class HostOf(Protocol):
    def __call__(self, engine: str, name: str = "data") -> HostMounted: ...


@pytest.fixture
async def keys(address: StoreAddress) -> AsyncIterator[SessionKeys]:
    async with SessionKeys.open(address) as opened:
        yield opened


@pytest.fixture
def manifests(store: Store) -> Manifests:
    return Manifests(store.in_bucket(STATE_BUCKET))


@pytest.fixture
async def mounts(short_dir: Path, fuse: None) -> AsyncIterator[Mounts]:
    host = Mounts(short_dir / "data")
    yield host
    await host.stop_all()


@pytest.fixture
async def host_of(
    request: pytest.FixtureRequest,
    short_dir: Path,
    bwrap: Path,
    fuse: None,
    store: Store,
    manifests: Manifests,
    keys: SessionKeys,
    address: StoreAddress,
    store_service: SeaweedFS,
) -> AsyncIterator[HostOf]:
    """A host by the name of its data directory: the local provider, wrapped by an engine. What runs
    there ends with the test."""
    begun: list[tuple[Boxes, Mounts]] = []

    def make(engine: str, name: str = "data") -> HostMounted:
        data, run = short_dir / name, short_dir / "run"
        boxes, mounts = Boxes(data, run, bwrap), Mounts(data)
        begun.append((boxes, mounts))
        local = LocalProvider(OwnBoxes(boxes, {}))
        daemons: dict[str, Daemons] = {}
        if engine == "geesefs":
            binary = request.getfixturevalue("geesefs")
            daemons["geesefs"] = Geesefs(binary, address.endpoint, address.bucket)
        else:
            cache, sockets = short_dir / f"cache-{name}", run / name
            weed = Weed(find_weed(Settings()), store_service.filer, address.bucket, cache, sockets)
            daemons["weed"] = weed
        wrap = with_geesefs if engine == "geesefs" else with_weed
        host = OwnMounts(mounts, daemons, address.bucket)
        return wrap(local, host, store, manifests, keys)

    yield make
    for boxes, mounts in begun:
        await boxes.stop_all()
        await mounts.stop_all()


@pytest.fixture(params=["weed", "geesefs"])
def engine(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    if name == "geesefs":
        request.getfixturevalue("geesefs")  # or skip, before anything is started
    return name


@pytest.fixture
def durable(host_of: HostOf, engine: str) -> HostMounted:
    """The local provider, wrapped by each engine."""
    return host_of(engine)
