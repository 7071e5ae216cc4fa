"""After a mount, before a sandbox sees it: what the file system forgot is put back from the last
receipt's manifest, where the content is still what that manifest says.

The manifest is the durable record of modes, times, links and empty directories. What is put back
may be forgotten again by the next mount, and is then put back again.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from sidecar.boxhost.contract import Files
from sidecar.workspace.manifest import Entry, Manifests
from sidecar.workspace.store import Store, StoredObject

RESTORE_SECONDS = 300
SWEEP_SECONDS = 60
LOOK_SECONDS = 5.0
# What has no md5 for an ETag must be read to be compared; not the whole of a large workspace.
MOST_BYTES_READ = 512 << 20
MOST_NAMED = 20


@dataclass(frozen=True)
class Restored:
    """How much was put back."""

    symlinks: int = 0
    modes: int = 0
    mtimes: int = 0
    directories: int = 0
    took: float = 0.0
    problems: Mapping[str, str] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return any((self.symlinks, self.modes, self.mtimes, self.directories, self.problems))


NOTHING_RESTORED = Restored()


@dataclass(frozen=True)
class Verified:
    """How many files of the last receipt the store still has as it says, and which it has not."""

    files: int
    of: int
    changed: tuple[str, ...]
    took: float


@dataclass(frozen=True)
class Wanted:
    """What a manifest says of the entries whose content has not changed since."""

    entries: Sequence[Entry] = ()
    problems: Mapping[str, str] = field(default_factory=dict)
    stored: bool = False  # whether the store has anything of the session at all
    verified: Verified | None = None  # None before the first receipt


async def wanted(
    session_id: str, store: Store, manifests: Manifests, most_read: int = MOST_BYTES_READ
) -> Wanted:
    """`most_read` bytes are read at most, of what cannot be compared otherwise.

    Raises: StoreUnavailable.
    """
    started = time.monotonic()
    prefix = f"{session_id}/"
    manifest = await manifests.latest(session_id)
    stored = await store.list(prefix)
    if manifest is None:
        return Wanted(stored=bool(stored))
    same = []
    problems = {}
    budget = most_read
    for entry in manifest.entries:
        found = stored.get(entry.path)
        if entry.kind == "directory" or _is_same(entry, found):
            same.append(entry)
        elif found is not None and entry.kind == "file" and found.size == entry.size:
            budget -= found.size
            if budget < 0:
                problems[entry.path] = "too large to compare: it keeps the mode and time it has"
            elif await store.sha256(prefix + entry.path) == entry.sha256:
                same.append(entry)
    verified = _verified(manifest.entries, same, time.monotonic() - started)
    return Wanted(same, problems, stored=bool(stored), verified=verified)


def _verified(told: Sequence[Entry], same: Sequence[Entry], took: float) -> Verified:
    unchanged = {entry.path for entry in same}
    files = [entry.path for entry in told if entry.kind in ("file", "symlink")]
    changed = [path for path in files if path not in unchanged]
    return Verified(len(files) - len(changed), len(files), tuple(changed[:MOST_NAMED]), took)


def _is_same(entry: Entry, found: StoredObject | None) -> bool:
    if found is None:
        return False
    if entry.kind == "symlink":
        return found.size == 0
    return entry.kind == "file" and found.size == entry.size and found.etag == entry.md5


async def restore(files: Files, want: Wanted, *, ask: bool, grain_ns: int) -> Restored:
    """Raises: MountSick."""
    started = time.monotonic()
    if not want.entries and not (ask and want.stored):
        return NOTHING_RESTORED
    done = await files.mend(
        "restore",
        bound=RESTORE_SECONDS,
        entries=[
            {
                "path": entry.path,
                "kind": entry.kind,
                "size": entry.size,
                "mode": entry.mode,
                "mtime_ns": entry.mtime_ns,
                "target": entry.target,
            }
            for entry in want.entries
        ],
        ask=ask,
        grain_ns=grain_ns,
    )
    problems = {**want.problems, **done.pop("problems")}
    return Restored(**done, problems=problems, took=time.monotonic() - started)


async def sweep_locks(files: Files) -> list[str]:
    """Remove git's stale locks. Only while nothing in a sandbox can hold one. Raises: MountSick."""
    paths: list[str] = (await files.mend("sweep_locks", bound=SWEEP_SECONDS))["paths"]
    return paths


async def look(files: Files, bound: float = LOOK_SECONDS) -> None:
    """Ask the mount's daemon for what it has in memory. Raises: MountSick."""
    await files.mend("look", bound=bound)
