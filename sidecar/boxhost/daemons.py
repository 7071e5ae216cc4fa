"""The daemons that serve mounts, as command lines. They are made here and nowhere else: whoever
asks for a mount says which session and which engine."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from sidecar.boxhost.contract import MountKey

PATH = "/usr/bin:/bin:/usr/sbin:/sbin"


@dataclass(frozen=True)
class Daemon:
    """The process that serves a mount. Credentials go by environment, never by argv."""

    argv: Sequence[str]
    env: Mapping[str, str]


class Daemons(Protocol):
    """How one engine's daemons are started."""

    @property
    def gives_root(self) -> bool:
        """Whether the top directory must be given to the sandbox's user after each mount."""
        ...

    def daemon(
        self, session_id: str, mountpoint: Path, uid: int, key: MountKey | None
    ) -> Daemon: ...


@dataclass(frozen=True)
class Weed:
    """SeaweedFS's own mount. Its daemon has the run of the filer, which knows no keys."""

    binary: Path
    filer: str
    bucket: str
    cache_dir: Path
    run_dir: Path

    @property
    def gives_root(self) -> bool:
        return os.geteuid() == 0  # an ordinary user mounts it as its own

    def daemon(self, session_id: str, mountpoint: Path, uid: int, key: MountKey | None) -> Daemon:
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
        return Daemon(argv, {"PATH": PATH, "HOME": str(cache)})


@dataclass(frozen=True)
class Geesefs:
    """FUSE over S3, by a key for the session alone."""

    binary: Path
    endpoint: str
    bucket: str

    gives_root = False

    def daemon(self, session_id: str, mountpoint: Path, uid: int, key: MountKey | None) -> Daemon:
        assert key is not None
        argv = [
            *(str(self.binary), *geesefs_flags(self.endpoint)),
            *("--uid", str(uid), "--gid", str(uid)),
        ]
        if os.geteuid() == 0:
            argv += ["-o", "allow_other"]
        argv += [f"{self.bucket}:{session_id}", str(mountpoint)]
        return Daemon(
            argv,
            {
                "PATH": PATH,
                "AWS_ACCESS_KEY_ID": key.access_key,
                "AWS_SECRET_ACCESS_KEY": key.secret_key,
            },
        )


def geesefs_flags(endpoint: str) -> list[str]:
    """What is the same wherever it is mounted."""
    return [
        *("-f", "--endpoint", endpoint, "--region", "us-east-1"),
        # --no-expire-multipart: a bucket-wide call that a key for one session is denied.
        *("--list-type", "2", "--no-detect", "--no-expire-multipart"),
        *("--enable-perms", "--enable-mtime", "--retry-interval", "1s"),
        *("--stat-cache-ttl", "10m", "--memory-limit", "500", "--print-stats", "0"),
    ]


def serving(bucket: str, session_id: str) -> Callable[[Sequence[str]], bool]:
    """Whether a command line is that of either engine's daemon for the session, at any path."""
    by_filer, by_s3 = f"-filer.path=/buckets/{bucket}/{session_id}", f"{bucket}:{session_id}"
    return lambda argv: by_filer in argv or ("-f" in argv and by_s3 in argv)
