"""geesefs: FUSE over S3. Works wherever S3 can be reached; only fsync is durable, which is what the
barrier does to everything that changed."""

from __future__ import annotations

from sidecar.boxhost.contract import MountHost
from sidecar.providers.base import Provider
from sidecar.workspace.engine import Engine
from sidecar.workspace.host_mounted import HostMounted
from sidecar.workspace.iam import SessionKeys
from sidecar.workspace.manifest import Manifests
from sidecar.workspace.store import Store

GEESEFS = Engine(
    name="geesefs",
    sync_root=True,
    by_key=True,
    forgets_metadata=True,  # a listing has none: it must fetch each file's
    mtime_grain_ns=1_000_000_000,
)


def with_geesefs(
    provider: Provider, mounts: MountHost, store: Store, manifests: Manifests, keys: SessionKeys
) -> HostMounted:
    return HostMounted(provider, GEESEFS, mounts, store, manifests, keys)
