"""weed: SeaweedFS's own mount of the session's directory, straight from the filer.

Closed files and every metadata call are durable when the call returns. Its daemon has the run of
the filer, so it lives on the host and never in a sandbox.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from sidecar.boxhost.mounts import Mounts
from sidecar.providers.base import Provider
from sidecar.workspace.engine import Daemon
from sidecar.workspace.host_mounted import HostMounted
from sidecar.workspace.iam import SessionKey, SessionKeys
from sidecar.workspace.manifest import Manifests
from sidecar.workspace.store import Store


@dataclass(frozen=True)
class Weed:
    binary: Path
    filer: str
    bucket: str
    cache_dir: Path
    run_dir: Path

    name = "weed"
    sync_root = False
    by_key = False  # the filer knows no keys
    forgets_metadata = False
    mtime_grain_ns = 1

    @property
    def give_root(self) -> bool:
        return os.geteuid() == 0  # an ordinary user mounts it as its own

    def daemon(self, session_id: str, mountpoint: Path, uid: int, key: SessionKey | None) -> Daemon:
        cache = self.cache_dir / session_id
        cache.mkdir(parents=True, exist_ok=True)
        self.run_dir.mkdir(parents=True, exist_ok=True)
        argv = [
            *(str(self.binary), "-logtostderr=true", "mount", f"-filer={self.filer}"),
            f"-filer.path=/buckets/{self.bucket}/{session_id}",
            f"-dir={mountpoint}",
            f"-cacheDir={cache}",
            f"-localSocket={self.run_dir / session_id[:18]}.sock",
            # `cp -a` would drop group and other mode bits: an ACL is taken as an opaque xattr.
            "-disableXAttr",
            *(f"-map.uid={uid}:0", f"-map.gid={uid}:0"),
            # -writebackCache is never set: it loses closed files.
        ]
        if os.geteuid() != 0:
            argv.append("-allowOthers=false")
        return Daemon(argv, {"PATH": "/usr/bin:/bin:/usr/sbin:/sbin", "HOME": str(cache)})


def with_weed(
    provider: Provider,
    engine: Weed,
    mounts: Mounts,
    store: Store,
    manifests: Manifests,
    keys: SessionKeys,
) -> HostMounted:
    return HostMounted(provider, engine, mounts, store, manifests, keys)
