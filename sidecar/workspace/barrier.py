"""The barrier: no turn is acknowledged before the store, asked by another client, has it all.

What a receipt means: every file's bytes, as the frozen sandbox had them, were acknowledged by the
store and read back from it, or told by it as an ETag that is their md5. The store's process may be
killed at any moment after that. What it acknowledged may still be in the memory of its operating
system, as SeaweedFS does not fsync what it stores: a power cut may take that.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Container, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from contracts.errors import BoxHostUnavailable, NotDurable, StoreUnavailable
from contracts.events import UnprovenCode
from sidecar.boxhost.contract import Files, MountSick
from sidecar.tasks import background
from sidecar.workspace.manifest import Entry, Manifest, Manifests
from sidecar.workspace.store import Store, StoredObject, StoreRefused

MOST_NAMED = 1000
AT_ONCE = 16
# One HEAD takes as long as some thirty keys of a listing.
HEAD_COSTS = 30
# What a mount answers while its store is away; waiting may mend it.
AWAY = {errno.EIO, errno.EAGAIN, errno.ETIMEDOUT, errno.ECONNABORTED, errno.EHOSTUNREACH}
AWAY_KINDS = {"EIO", "ECONNABORTED", *(f"errno {number}" for number in AWAY)}
HOPELESS_KINDS = {"hang", "ENOTCONN", "EACCES"}


Held = Callable[[], Awaitable[Iterable[int]]]


class Carrier(Protocol):
    """Carries files between the workspace and the store. Raises: MountSick, StoreUnavailable."""

    @property
    def fetched(self) -> Mapping[str, tuple[str, str]]:
        """The sha256 of what was read from the store, by path, and the ETag that it had there."""
        ...

    async def push(self, wanted: Mapping[str, Entry], gone: Iterable[str]) -> None:
        """Bring to the store what it lacks or has otherwise, and take away what is gone; a path
        with a slash at its end is a directory that is empty there."""
        ...

    async def fetch(self, paths: Iterable[str]) -> None:
        """Bring files from the store into the workspace, which has nothing of their names."""
        ...


@dataclass(frozen=True)
class BarrierLimits:
    """How long and how often the barrier tries. Times are in seconds."""

    walk: float = 200  # weed's fsync has been seen to take 127 s with the store away
    # A store that is away for half a minute costs time, not the receipt.
    patience: float = 75
    longest_pause: float = 4
    tries: int = 20  # for what is only on its way
    pause: float = 0.25
    # geesefs now and then forgets to delete a file's old name after a rename (git does one for
    # every lock). More than a few at once is no such slip, and is not mended.
    ghost_tries: int = 8
    most_ghosts: int = 20


@dataclass(frozen=True)
class Gap:
    """Why one file is not proven: for programs, and in words."""

    code: UnprovenCode
    reason: str


MISSING = Gap(UnprovenCode.MISSING, "the store does not have it")
OTHER_BYTES = Gap(UnprovenCode.CONTENT_DIFFERS, "the store has other bytes")
STILL_STORED = Gap(UnprovenCode.NOT_DELETED, "it is deleted here but still in the store")


async def nobody() -> Iterable[int]:
    """No inode is held."""
    return ()


@dataclass(frozen=True)
class Proof:
    """What the store has, as compared with what the sandbox sees."""

    engine: str
    files: int
    bytes: int
    manifest_sha256: str
    took: float
    ghosts: tuple[str, ...] = ()  # what the store had kept of files that were deleted
    lost: str = ""  # why more was there than is proven


@dataclass
class Look:
    """What one look found wanting. `away`: waiting for the store may mend it; `hopeless`: nothing
    but the user can."""

    missing: dict[str, Gap] = field(default_factory=dict)
    reason: str = ""
    away: bool = False
    hopeless: bool = False

    @property
    def good(self) -> bool:
        return not self.missing and not self.reason

    def only_ghosts(self, most: int) -> bool:
        few = 0 < len(self.missing) <= most
        return few and not self.reason and set(self.missing.values()) == {STILL_STORED}


class Barrier:
    """Remembers what was proven before, so that only what changed is read again."""

    def __init__(
        self,
        files: Files,
        store: Store,
        manifests: Manifests,
        session_id: str,
        engine: str,
        *,
        sync_root: bool,
        held: Held,
        carrier: Carrier | None = None,
        limits: BarrierLimits | None = None,
    ) -> None:
        """`held` tells the inodes that a process can write to without leaving a trace. `carrier` is
        for a workspace that does not come to the store by itself."""
        self._files = files
        self._store = store
        self._manifests = manifests
        self._session_id = session_id
        self._prefix = f"{session_id}/"
        self._engine = engine
        self._sync_root = sync_root
        self._held = held
        self._carrier = carrier
        self._limits = limits or BarrierLimits()
        self._also_held: Held = nobody
        self._was_held: set[int] = set()
        # One at a time: what a sync has read must not reach the store behind a later proof.
        self._busy = asyncio.Lock()
        self._token = ""
        self._entries: dict[str, Entry] = {}
        self._md5: dict[str, str] = {}
        self._proven: dict[str, tuple[str, str]] = {}  # path -> sha256, ETag that goes with it
        self._pushed: dict[str, str] = {}  # path -> md5 of what the carrier has stored
        self._suspect: set[str] = set()
        self._distrusted: set[str] = set()  # read again, although nothing tells that they changed
        self._deleted: set[str] = set()  # what was here, is not any more, and may still be stored

    async def prove(self, turn_id: str, epoch: int, also_held: Held = nobody) -> Proof:
        """`also_held` tells more such inodes, of a sandbox that the host cannot look into.

        Raises: NotDurable, with the files and the reason for each; StaleEpoch.
        """
        async with self._busy:
            return await self._prove(turn_id, epoch, also_held)

    async def _prove(self, turn_id: str, epoch: int, also_held: Held) -> Proof:
        self._also_held = also_held
        started = time.monotonic()
        limits = self._limits
        tries, pause, stored = limits.tries, limits.pause, ""
        ghosts: tuple[str, ...] = ()
        while True:
            look = await self.look()
            if self._carrier is not None and look.missing:
                look = await self._look_after_carrying(self._carrier, look)
            late = tries <= limits.tries - limits.ghost_tries
            if late and not ghosts and look.only_ghosts(limits.most_ghosts):
                ghosts = await self._lay(look.missing, turn_id)
            if look.good:
                try:
                    manifest = self._manifest(turn_id, epoch)
                    stored = await self._manifests.put(manifest)
                    break
                except StoreUnavailable as error:
                    look = Look(reason=error.message, away=True)
            tries = limits.tries if look.away else tries - 1
            out_of_time = time.monotonic() - started > limits.patience
            if look.hopeless or tries == 0 or (look.away and out_of_time):
                raise _not_durable(look)
            await asyncio.sleep(pause)
            pause = min(pause * 1.5, limits.longest_pause) if look.away else limits.pause
        files = [entry for entry in manifest.entries if entry.kind == "file"]
        return Proof(
            engine=self._engine,
            files=len(files),
            bytes=sum(entry.size or 0 for entry in files),
            manifest_sha256=stored,
            took=time.monotonic() - started,
            ghosts=ghosts,
        )

    async def sync(self) -> None:
        """Bring the store up to date without a proof: what is written meanwhile may be missing.

        Raises: MountSick, StoreUnavailable.
        """
        if self._carrier is None:
            return
        async with self._busy:
            seen, stored = await self._both_sides()
            odd = {*seen["odd"], *(problem["path"] for problem in seen["problems"])}
            await self._carry(self._carrier, await self._differences(stored, ignored=odd))

    async def _look_after_carrying(self, carrier: Carrier, look: Look) -> Look:
        try:
            await self._carry(carrier, look.missing)
        except MountSick as sick:
            return Look(reason=f"the workspace cannot be read: {sick.message}")
        except StoreUnavailable as error:
            fenced = isinstance(error, StoreRefused)
            return Look(reason=error.message, away=not fenced, hopeless=fenced)
        return await self.look()

    async def _carry(self, carrier: Carrier, differences: Mapping[str, Gap]) -> None:
        only_stored = {path for path, gap in differences.items() if gap == STILL_STORED}
        gone = await self._gone_here(only_stored)
        in_the_way = {path: self._in_the_way(path) for path in only_stored - gone}
        wanted = differences.keys() & self._entries.keys() - set(in_the_way.values())
        # A directory of that name that a user or a mount has made would hide what is stored.
        hiding = [f"{path}/" for path in wanted if differences[path] == MISSING]
        deleted = [*gone, *self._vanished_directories(gone), *hiding]
        await carrier.push({path: self._entries[path] for path in wanted}, deleted)
        self._pushed.update({path: self._md5[path] for path in wanted})
        await carrier.fetch(path for path, what in in_the_way.items() if what is None)

    async def _gone_here(self, only_stored: set[str]) -> set[str]:
        """Which of these were deleted in the workspace. Of what was never seen here and no receipt
        knows, the store has the only copy: a user has put it there."""
        gone = {path for path in only_stored if path in self._deleted or path in self._entries}
        if gone < only_stored:
            latest = await self._manifests.latest(self._session_id)
            known = {entry.path for entry in latest.entries} if latest is not None else set()
            gone |= only_stored & known
        return gone

    def _vanished_directories(self, gone: Iterable[str]) -> list[str]:
        """The keys of directories that went with these files, the deepest first. SeaweedFS keeps
        one whose last object is deleted, and what is stored under its name later would be a
        directory to a mount. It does not delete one that is not empty."""
        above = {path[:at] for path in gone for at, each in enumerate(path) if each == "/"}
        vanished = [
            path
            for path in above
            if path not in self._entries or self._entries[path].kind != "directory"
        ]
        return [f"{path}/" for path in sorted(vanished, key=len, reverse=True)]

    def _in_the_way(self, path: str) -> str | None:
        """What stands in the workspace where a file of the store needs a directory. Neither takes
        the place of the other: the user has to choose."""
        steps = path.split("/")
        for depth in range(1, len(steps)):
            above = self._entries.get("/".join(steps[:depth]))
            if above is not None and above.kind != "directory":
                return above.path
        return None

    async def _lay(self, paths: Iterable[str], turn_id: str) -> tuple[str, ...]:
        """Take out of the store what the workspace does not have; a copy is kept beside the
        manifests, should the workspace be wrong. Nothing but its mount writes there."""
        laid = []
        for path in sorted(paths):
            with contextlib.suppress(StoreUnavailable):  # then it is still missing at the next look
                kept = f"{self._session_id}/removed/{turn_id}/{path}"
                await self._store.move(self._prefix + path, self._manifests.bucket, kept)
                laid.append(path)
        return tuple(laid)

    def _manifest(self, turn_id: str, epoch: int) -> Manifest:
        entries = tuple(self._entries[path] for path in sorted(self._entries))
        return Manifest(self._session_id, turn_id, epoch, self._engine, entries)

    async def look(self) -> Look:
        """Flush what changed, and compare both sides once."""
        try:
            seen, stored = await self._both_sides()
            look = Look()
            for path, reason in seen["odd"].items():
                look.missing[path] = Gap(UnprovenCode.UNSUPPORTED, reason)
            look.hopeless = bool(look.missing)
            for problem in seen["problems"]:
                gap = Gap(UnprovenCode.UNREADABLE, problem["reason"])
                look.missing[problem["path"]] = gap
                look.away |= problem["errno"] in AWAY
            differences = await self._differences(stored, ignored=look.missing)
        except MountSick as sick:
            return Look(
                reason=f"the workspace cannot be read: {sick.message}",
                away=sick.kind in AWAY_KINDS,
                hopeless=sick.kind in HOPELESS_KINDS,
            )
        except (StoreUnavailable, BoxHostUnavailable) as error:
            return Look(reason=error.message, away=True)
        # Waiting does not mend a name, but it may mend the others.
        look.hopeless &= not seen["problems"] and not differences
        look.missing |= differences
        return look

    async def _both_sides(self) -> tuple[dict[str, Any], dict[str, StoredObject]]:
        """What changed here, flushed; and what is in the store since."""
        held = {*await self._held(), *await self._also_held()}
        # What was mapped at the last look may have been written to until it was unmapped.
        held, self._was_held = held | self._was_held, held
        async with self._early_listing() as listing:
            scan = await self._files.call(
                "scan",
                bound=self._limits.walk,
                token=self._token,
                held=sorted(held),
                distrusted=sorted(self._distrusted),
            )
            changes = scan["pending"] + scan["gone"]
            if changes * HEAD_COSTS > scan["names"] and listing is not None:
                listing.cancel()
                listing = None
            seen = await self._files.call(
                "settle", bound=self._limits.walk, sync_root=self._sync_root
            )
            self._take(seen)
            if listing is None:
                return seen, await self._store.list(self._prefix)
            stored: dict[str, StoredObject] = await listing
            # What was listed meanwhile tells nothing about what was flushed meanwhile.
            await self._look_again(stored, [*seen["read"], *seen["gone"]])
            return seen, stored

    @contextlib.asynccontextmanager
    async def _early_listing(self) -> AsyncIterator[asyncio.Task[dict[str, StoredObject]] | None]:
        """A listing beside the scan, where it takes long and few changes are likely."""
        async with background() as tasks:
            worth = len(self._entries) > HEAD_COSTS
            yield tasks.start(self._store.list(self._prefix)) if worth else None

    async def _look_again(self, stored: dict[str, StoredObject], paths: Iterable[str]) -> None:
        async def one(path: str) -> None:
            found = await self._store.head(self._prefix + path)
            if found is None:
                stored.pop(path, None)
            else:
                stored[path] = found

        await _each(one, paths)

    def _take(self, seen: Mapping[str, Any]) -> None:
        """Bring what is known of the workspace up to date."""
        if seen["full"]:
            self._deleted.update(self._entries)
            self._entries.clear()
            self._md5.clear()
        for path in seen["gone"]:
            if self._entries.pop(path, None) is not None:
                self._deleted.add(path)
            self._md5.pop(path, None)
        for plain in seen["entries"]:
            path = plain["path"]
            self._md5[path] = plain.get("md5", "")
            self._entries[path] = Entry(**plain)
        self._deleted.difference_update(self._entries)
        self._suspect.intersection_update(self._entries)
        # After a failed fsync the mount may show what it has lost: only the store's bytes count.
        self._suspect.update(item["path"] for item in seen["problems"] if item["errno"] in AWAY)
        self._token = seen["token"]

    async def _differences(
        self, stored: Mapping[str, StoredObject], ignored: Container[str]
    ) -> dict[str, Gap]:
        """What the store has not, has otherwise, or still has although it was deleted."""
        differences: dict[str, Gap] = {}
        to_read: list[str] = []
        proven: dict[str, tuple[str, str]] = {}
        for path, entry in self._entries.items():
            there = stored.get(path)
            if entry.kind == "directory" and there is not None:  # it was a file before
                differences[path] = STILL_STORED
            if entry.kind in ("directory", "special") or path in ignored:
                continue
            if there is None:
                differences[path] = MISSING
            elif entry.kind == "symlink":
                continue
            elif there.size != entry.size:
                reason = f"the store has {there.size} of {entry.size} bytes"
                differences[path] = Gap(UnprovenCode.SIZE_DIFFERS, reason)
            elif path in self._suspect or not self._is_proven(entry, there):
                to_read.append(path)
            else:
                proven[path] = (entry.sha256 or "", there.etag)
        for path in stored.keys() - self._entries.keys():
            differences[path] = STILL_STORED

        async def read(path: str) -> None:
            sha256 = self._entries[path].sha256 or ""
            if await self._store.sha256(self._prefix + path) != sha256:
                differences[path] = OTHER_BYTES
            else:
                proven[path] = (sha256, stored[path].etag)
                self._suspect.discard(path)

        await _each(read, to_read)
        self._proven = proven
        # The store may be right: a file can be written to so that nothing tells it.
        self._distrusted = {path for path, gap in differences.items() if gap == OTHER_BYTES}
        self._deleted.intersection_update(stored)
        return differences

    def _is_proven(self, entry: Entry, there: StoredObject) -> bool:
        """An ETag is the md5 only of what was stored in one piece, and of nothing that a weed mount
        has written to since: SeaweedFS keeps the one of the upload. Where a carrier brings files to
        the store, the mount of an earlier turn may have done so, and only what was pushed or read
        by us is known by its ETag."""
        told = (entry.sha256, there.etag)
        if self._proven.get(entry.path) == told:
            return True
        if self._carrier is None:
            return there.etag == self._md5[entry.path]
        if self._carrier.fetched.get(entry.path) == told:
            return True
        return there.etag == self._md5[entry.path] == self._pushed.get(entry.path)


async def _each(work: Callable[[str], Any], paths: Iterable[str]) -> None:
    """Do it to every path, some at a time."""
    slots = asyncio.Semaphore(AT_ONCE)

    async def one(path: str) -> None:
        async with slots:
            await work(path)

    async with background() as tasks:
        for task in [tasks.start(one(path)) for path in paths]:
            await task


def _not_durable(look: Look) -> NotDurable:
    hint = "The turn's work is in the sandbox; run another turn to try again."
    if look.reason:
        return NotDurable(look.reason, hint=hint, files={}, codes={}, more=0)
    shown = dict(list(look.missing.items())[:MOST_NAMED])
    names = ", ".join(f"{path} ({gap.reason})" for path, gap in list(shown.items())[:5])
    return NotDurable(
        f"{len(look.missing)} files are not proven to be in the store: {names}",
        hint=hint,
        files={path: gap.reason for path, gap in shown.items()},
        codes={path: gap.code.value for path, gap in shown.items()},
        more=len(look.missing) - len(shown),
    )
