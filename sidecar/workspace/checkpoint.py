"""checkpoint: the workspace is on the sandbox's own disk; the sidecar carries it to the store and
back.

It works wherever a sandbox can be reached, and needs neither FUSE nor a way from the sandbox to
the store: what is changed is read through the sandbox's files and stored by a key for the session
alone, at the barrier and every few seconds in between. What a sandbox wrote after the last of those
is lost with it.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from sidecar.boxhost.contract import Files, MountSick
from sidecar.providers.base import SESSION_DIR, WORKSPACE, Command, InBoxSandbox, Provider
from sidecar.tasks import background
from sidecar.workspace.engine import Engine
from sidecar.workspace.iam import SessionKey
from sidecar.workspace.in_box import Brought, Closing, InBox, Parts
from sidecar.workspace.manifest import Entry
from sidecar.workspace.store import Store, StoreAddress, StoredObject

CHECKPOINT = Engine(
    name="checkpoint",
    sync_root=False,
    by_key=True,
    forgets_metadata=False,
    mtime_grain_ns=1,
)
PIECE = 4 << 20
# One call's worth of small files: some megabytes of base64, and not too many names.
MOST_FILES = 500
CALL_SECONDS = 120
AT_ONCE = 8


# Says that the sandbox's disk has all of a session's files, and whose they are; written last.
MARK = f"{SESSION_DIR}/.holdfast-checkpoint"
COMMAND_SECONDS = 60
# A few bytes: the agent may have put anything there.
READ_MARK = Command(["head", "-c", "500", MARK], cwd="/", timeout=COMMAND_SECONDS)
HAS_NO_MARK = Command(["test", "!", "-e", MARK], cwd="/", timeout=COMMAND_SECONDS)
CLEAR = (
    Command(["mkdir", "-p", WORKSPACE], cwd="/", timeout=COMMAND_SECONDS),
    Command(["find", WORKSPACE, "-mindepth", "1", "-delete"], cwd="/", timeout=COMMAND_SECONDS),
)


def with_checkpoint(provider: Provider, parts: Parts, seconds: float, why: str) -> InBox:
    return InBox(provider, [Checkpoint(parts.address, seconds)], parts, why)


class Checkpoint:
    """A Bringing: onto the sandbox's own disk."""

    engine = CHECKPOINT

    def __init__(self, address: StoreAddress, seconds: float) -> None:
        self._address = address
        self.sync_seconds = seconds

    async def unsuited(self, sandbox: InBoxSandbox) -> str:
        return ""

    async def bring(
        self,
        sandbox: InBoxSandbox,
        files: Files,
        session_id: str,
        key: SessionKey,
        closing: Closing,
        *,
        new: bool,
    ) -> Brought:
        copies = await closing.enter_async_context(
            Copies.open(files, self._address, key, session_id, sandbox.files_owner)
        )
        if await self.is_there(sandbox):
            return Brought(copies, fresh=False)
        if not new:
            raise MountSick(
                "mark",
                f"{MARK} is missing: what the disk has of the session's files is not known",
            )
        # What a fill that was cut off has left is not the session's.
        for command in CLEAR:
            done = await sandbox.exec(command)
            if done.exit_code != 0:
                raise MountSick("clear", f"{WORKSPACE} cannot be cleared: {done.stderr[:200]!r}")
        await copies.fill()
        return Brought(copies, fresh=True)

    async def brought(self, sandbox: InBoxSandbox, session_id: str) -> None:
        """From now on what is missing on the disk was deleted, and is deleted in the store."""
        await sandbox.write(MARK, _mark(sandbox))

    async def is_there(self, sandbox: InBoxSandbox) -> bool:
        """Whether the sandbox's disk has the session's files. False only when the sandbox says
        twice, in two ways, that it has no mark.

        Raises: Unreachable, MountSick.
        """
        found = await sandbox.exec(READ_MARK)
        if found.exit_code == 0:
            if found.stdout == _mark(sandbox):
                return True
            raise MountSick("mark", f"{MARK} is not this sandbox's")
        if found.exit_code == 1 and not found.stdout:
            missing = await sandbox.exec(HAS_NO_MARK)
            if missing.exit_code == 0:
                return False
        raise MountSick("mark", f"{MARK} cannot be read: exit code {found.exit_code}")


def _mark(sandbox: InBoxSandbox) -> bytes:
    """The session, the sandbox and the turn that it was made for."""
    labels = sandbox.labels
    return f"{labels['session']} {sandbox.id} {labels.get('epoch', '')}".encode()


@dataclass(frozen=True)
class Piece:
    path: str
    offset: int
    size: int


class Copies:
    """Carries files between a workspace and the session's prefix of the store."""

    def __init__(self, files: Files, store: Store, session_id: str, owner: int | None) -> None:
        self._files = files
        self._store = store
        self._prefix = f"{session_id}/"
        self._owner = owner
        self.fetched: dict[str, tuple[str, str]] = {}

    @classmethod
    @contextlib.asynccontextmanager
    async def open(
        cls,
        files: Files,
        address: StoreAddress,
        key: SessionKey,
        session_id: str,
        owner: int | None,
    ) -> AsyncIterator[Copies]:
        """By a key that is refused as soon as somebody else has the session."""
        own = replace(address, access_key=key.access_key, secret_key=key.secret_key)
        async with Store.open(own) as store:
            yield cls(files, store, session_id, owner)

    async def fill(self) -> int:
        """Everything that the store has, into an empty workspace; how many files.

        Raises: MountSick, StoreUnavailable.
        """
        stored = await self._store.list(self._prefix)
        await self._bring(stored)
        return len(stored)

    async def fetch(self, paths: Iterable[str]) -> None:
        found = {path: await self._store.head(self._prefix + path) for path in paths}
        here = {path: replace(item, key=path) for path, item in found.items() if item is not None}
        await self._bring(here)

    async def _bring(self, stored: Mapping[str, StoredObject]) -> None:
        taken: set[str] = set()  # by the agent, meanwhile
        etags = {item.key: item.etag for item in stored.values()}
        read: dict[str, Any] = {}  # the sha256 of each file, as far as it was read
        for whole in _batches(_pieces(stored.values())):
            batch = [piece for piece in whole if piece.path not in taken]
            datas = await _all(self._fetch(piece) for piece in batch)
            pieces = [
                {"path": p.path, "offset": p.offset, "data": base64.b64encode(data).decode()}
                for p, data in zip(batch, datas, strict=True)
            ]
            for piece, data in zip(batch, datas, strict=True):
                read.setdefault(piece.path, hashlib.sha256()).update(data)
            told = await self._files.call(
                "fill", bound=CALL_SECONDS, pieces=pieces, uid=self._owner
            )
            taken.update(told["taken"])
        for path, sha256 in read.items():
            if path not in taken:
                self.fetched[path] = (sha256.hexdigest(), etags[path])

    async def _fetch(self, piece: Piece) -> bytes:
        if piece.size == 0:
            return b""
        return await self._store.read(self._prefix + piece.path, piece.offset, piece.size)

    async def push(self, wanted: Mapping[str, Entry], gone: Iterable[str]) -> None:
        """Make the store have these as the workspace has them, and not have those any more. A file
        that is written to meanwhile is stored as it was met, and is met again.

        Raises: MountSick, StoreUnavailable.
        """
        # First: a name may have been a file and be a directory now.
        await self._store.delete([self._prefix + path for path in gone])
        entries = [entry for entry in wanted.values() if entry.kind in ("file", "symlink")]
        small = [Piece(e.path, 0, e.size or 0) for e in entries if (e.size or 0) <= PIECE]
        for batch in _batches(small):
            datas = await self._take(batch)
            await _all(
                self._store.put(self._prefix + piece.path, data)
                for piece, data in zip(batch, datas, strict=True)
                if data is not None
            )
        for entry in entries:
            if (entry.size or 0) > PIECE:
                await self._store.put_large(self._prefix + entry.path, self._whole(entry))

    async def _whole(self, entry: Entry) -> AsyncIterator[bytes]:
        """As much of it as was seen: a sandbox could go on for ever."""
        offset = 0
        while offset < (entry.size or 0):
            (data,) = await self._take([Piece(entry.path, offset, PIECE)])
            if not data:
                return
            offset += len(data)
            yield data

    async def _take(self, pieces: list[Piece]) -> list[bytes | None]:
        """Links are stored as empty objects: where they lead is in the manifest."""
        asked: list[dict[str, Any]] = [
            {"path": piece.path, "offset": piece.offset, "size": piece.size} for piece in pieces
        ]
        answer = await self._files.call("take", bound=CALL_SECONDS, pieces=asked)
        return [
            base64.b64decode(data) if data is not None else (b"" if not piece.size else None)
            for piece, data in zip(pieces, answer["pieces"], strict=True)
        ]


def _pieces(stored: Iterable[StoredObject]) -> Iterator[Piece]:
    for item in sorted(stored, key=lambda item: item.key):
        for offset in range(0, max(item.size, 1), PIECE):
            yield Piece(item.key, offset, min(PIECE, item.size - offset))


def _batches(pieces: Iterable[Piece]) -> Iterator[list[Piece]]:
    batch: list[Piece] = []
    size = 0
    for piece in pieces:
        if batch and (size + piece.size > PIECE or len(batch) == MOST_FILES):
            yield batch
            batch, size = [], 0
        batch.append(piece)
        size += piece.size
    if batch:
        yield batch


async def _all(work: Iterable[Any]) -> list[Any]:
    """The results of all, some at a time, in order; the first failure ends the others."""
    slots = asyncio.Semaphore(AT_ONCE)

    async def one(each: Any) -> Any:
        async with slots:
            return await each

    async with background() as tasks:
        return [await task for task in [tasks.start(one(each)) for each in work]]
