"""geesefs: FUSE over S3. Works wherever S3 can be reached; only fsync is durable, which is what the
barrier does to everything that changed."""

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
from sidecar.workspace.store import Store, StoreAddress


@dataclass(frozen=True)
class Geesefs:
    binary: Path
    address: StoreAddress

    name = "geesefs"
    sync_root = True
    give_root = False
    by_key = True
    forgets_metadata = True  # a listing has none: it must fetch each file's
    mtime_grain_ns = 1_000_000_000

    def daemon(self, session_id: str, mountpoint: Path, uid: int, key: SessionKey | None) -> Daemon:
        assert key is not None
        argv = [
            *(str(self.binary), "-f", "--endpoint", self.address.endpoint, "--region", "us-east-1"),
            # --no-expire-multipart: a bucket-wide call that a key for one session is denied.
            *("--list-type", "2", "--no-detect", "--no-expire-multipart"),
            *("--enable-perms", "--enable-mtime", "--retry-interval", "1s"),
            *("--stat-cache-ttl", "10m", "--memory-limit", "500", "--print-stats", "0"),
            *("--uid", str(uid), "--gid", str(uid)),
        ]
        if os.geteuid() == 0:
            argv += ["-o", "allow_other"]
        argv += [f"{self.address.bucket}:{session_id}", str(mountpoint)]
        return Daemon(
            argv,
            {
                "PATH": "/usr/bin:/bin:/usr/sbin:/sbin",
                "AWS_ACCESS_KEY_ID": key.access_key,
                "AWS_SECRET_ACCESS_KEY": key.secret_key,
            },
        )


def with_geesefs(
    provider: Provider,
    engine: Geesefs,
    mounts: Mounts,
    store: Store,
    manifests: Manifests,
    keys: SessionKeys,
) -> HostMounted:
    return HostMounted(provider, engine, mounts, store, manifests, keys)
