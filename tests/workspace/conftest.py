from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path

import aioboto3
import pytest

from sidecar.boxhost.boxes import Boxes
from sidecar.boxhost.mounts import Mounts
from sidecar.providers.local import LocalProvider
from sidecar.workspace.engine import HostMounted
from sidecar.workspace.geesefs import Geesefs, with_geesefs
from sidecar.workspace.store import Store, StoreAddress
from sidecar.workspace.weed import Weed, with_weed
from stack.install.binaries import find_weed
from stack.settings import Settings
from tests.services import SeaweedFS

Wrap = Callable[[LocalProvider], HostMounted]


@pytest.fixture(scope="session")
async def address(store_service: SeaweedFS) -> StoreAddress:
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
        for bucket in (found.bucket, "elsewhere"):
            await s3.create_bucket(Bucket=bucket)
    return found


@pytest.fixture
async def store(address: StoreAddress) -> AsyncIterator[Store]:
    async with Store.open(address) as opened:
        yield opened


@pytest.fixture
async def mounts(short_dir: Path, fuse: None) -> AsyncIterator[Mounts]:
    host = Mounts(short_dir / "data")
    yield host
    await host.stop_all()


@pytest.fixture(params=["weed", "geesefs"])
async def durable(
    request: pytest.FixtureRequest,
    short_dir: Path,
    bwrap: Path,
    mounts: Mounts,
    store: Store,
    address: StoreAddress,
    store_service: SeaweedFS,
) -> AsyncIterator[HostMounted]:
    """The local provider, wrapped by each engine."""
    boxes = Boxes(short_dir / "data", short_dir / "run", bwrap)
    local = LocalProvider(boxes, {})
    if request.param == "geesefs":
        binary: Path = request.getfixturevalue("geesefs")
        wrapped = with_geesefs(local, Geesefs(binary, address), mounts, store)
    else:
        weed = Weed(
            find_weed(Settings()),
            store_service.filer,
            address.bucket,
            short_dir / "cache",
            short_dir / "run",
        )
        wrapped = with_weed(local, weed, mounts, store)
    yield wrapped
    await boxes.stop_all()
