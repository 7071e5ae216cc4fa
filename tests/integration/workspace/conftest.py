from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Protocol

import pytest

from sidecar.boxhost.boxes import Boxes
from sidecar.boxhost.daemons import Daemons, Geesefs, Weed
from sidecar.boxhost.freezer import FREEZE_SECONDS
from sidecar.boxhost.in_process import OwnBoxes, OwnMounts
from sidecar.boxhost.mounts import MountLimits, Mounts
from sidecar.providers.local import LocalProvider
from sidecar.workspace.engine import WorkspaceLimits
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
    """A host by the name of its data directory; all else is as in a stack unless it is given."""

    def __call__(
        self,
        engine: str,
        name: str = "data",
        *,
        store: Store | None = None,
        manifests: Manifests | None = None,
        keys: SessionKeys | None = None,
        provider: type[LocalProvider] = LocalProvider,
        daemons: Mapping[str, Daemons] | None = None,
        freeze_seconds: float = FREEZE_SECONDS,
        mount_limits: MountLimits | None = None,
        limits: WorkspaceLimits | None = None,
    ) -> HostMounted: ...


@pytest.fixture(scope="session")
async def store(address: StoreAddress) -> AsyncIterator[Store]:
    async with Store.open(address) as opened:
        yield opened


@pytest.fixture(scope="session")
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
    """The local provider, wrapped by an engine. What runs there ends with the test."""
    begun: list[tuple[HostMounted, Boxes, Mounts]] = []
    own_store, own_manifests, own_keys = store, manifests, keys

    def usual_daemons(engine: str, name: str) -> dict[str, Daemons]:
        if engine == "geesefs":
            binary = request.getfixturevalue("geesefs")
            return {"geesefs": Geesefs(binary, address.endpoint, address.bucket)}
        cache, sockets = short_dir / f"cache-{name}", short_dir / "run" / name
        weed = find_weed(Settings())
        return {"weed": Weed(weed, store_service.filer, address.bucket, cache, sockets)}

    def make(
        engine: str,
        name: str = "data",
        *,
        store: Store | None = None,
        manifests: Manifests | None = None,
        keys: SessionKeys | None = None,
        provider: type[LocalProvider] = LocalProvider,
        daemons: Mapping[str, Daemons] | None = None,
        freeze_seconds: float = FREEZE_SECONDS,
        mount_limits: MountLimits | None = None,
        limits: WorkspaceLimits | None = None,
    ) -> HostMounted:
        data, run = short_dir / name, short_dir / "run"
        boxes = Boxes(data, run, bwrap, freeze_seconds=freeze_seconds)
        wrap = with_geesefs if engine == "geesefs" else with_weed
        served = usual_daemons(engine, name) if daemons is None else daemons
        host = wrap(
            provider(OwnBoxes(boxes, {})),
            OwnMounts(Mounts(data, mount_limits), served, address.bucket),
            store or own_store,
            manifests or own_manifests,
            keys or own_keys,
            limits=limits,
        )
        begun.append((host, boxes, Mounts(data)))
        return host

    yield make
    for host, boxes, mounts in begun:
        await host.aclose()
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
