"""A new PostgreSQL cluster as a copy of one that was made before, because initdb takes seconds.

The copies share PostgreSQL's system identifier. It tells a standby or an archive of WAL whose they
are, and a stack has neither: wal_level is minimal, and backups are not made of the cluster's files.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import tempfile
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

# An unfinished template that is older than this was left by a process that died.
_STALE_SECONDS = 3600.0


def template_key(words: Iterable[str]) -> str:
    """A name for all that a cluster is made with: programs, options, statements."""
    return hashlib.sha256("\0".join(words).encode()).hexdigest()[:16]


@dataclass(frozen=True)
class ClusterTemplate:
    """A cluster that was never started as a server. Whole or absent: it appears by a rename."""

    place: Path

    def copy_to(self, target: Path) -> bool:
        """Copy it; the caller makes the files durable. False when there is none to copy.

        A copy that fails is no error: the caller can make a cluster without it.
        """
        try:
            # its configuration names commands that PostgreSQL runs
            if self.place.stat().st_uid != os.geteuid():
                return False
            shutil.copytree(self.place, target, symlinks=True)
        except OSError:
            shutil.rmtree(target, ignore_errors=True)
            return False
        return True

    def keep(self, cluster: Path) -> None:
        """Make `cluster`, which no server has open, the template. Does nothing where it cannot."""
        with contextlib.suppress(OSError):
            self.place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._sweep()
            new = Path(tempfile.mkdtemp(prefix=".new-", dir=self.place.parent))
            try:
                shutil.copytree(cluster, new, symlinks=True, dirs_exist_ok=True)
                new.rename(self.place)  # fails where another stack was faster
            finally:
                shutil.rmtree(new, ignore_errors=True)

    def _sweep(self) -> None:
        for left in self.place.parent.glob(".new-*"):
            if time.time() - left.stat().st_mtime > _STALE_SECONDS:
                shutil.rmtree(left, ignore_errors=True)
