"""weed: SeaweedFS's own mount of the session's directory, straight from the filer.

Closed files and every metadata call are durable when the call returns. Its daemon has the run of
the filer, so it lives on the host and never in a sandbox.
"""

from __future__ import annotations

from sidecar.boxhost.contract import MountHost
from sidecar.providers.base import Provider
from sidecar.workspace.engine import Engine, WorkspaceLimits
from sidecar.workspace.host_mounted import HostMounted
from sidecar.workspace.iam import SessionKeys
from sidecar.workspace.manifest import Manifests
from sidecar.workspace.store import Store

WEED = Engine(
    name="weed",
    sync_root=False,
    by_key=False,  # the filer knows no keys
    forgets_metadata=False,
    mtime_grain_ns=1,
)


def with_weed(
    provider: Provider,
    mounts: MountHost,
    store: Store,
    manifests: Manifests,
    keys: SessionKeys,
    why: str = "",
    limits: WorkspaceLimits | None = None,
) -> HostMounted:
    return HostMounted(provider, WEED, mounts, store, manifests, keys, why, limits)
