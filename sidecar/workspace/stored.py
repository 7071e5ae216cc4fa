"""A workspace whose sandbox is gone with all that it had: what the store has is what there is."""

from __future__ import annotations

import time
from typing import Any

from contracts.errors import NotDurable, StoreUnavailable
from sidecar.boxhost.contract import MountSick
from sidecar.workspace.barrier import Held, Proof, nobody
from sidecar.workspace.engine import Engine, Workspace
from sidecar.workspace.manifest import Entry, Manifest, Manifests
from sidecar.workspace.store import Store, StoredObject

PLAIN_MODE = 0o644


class NoFiles:
    """Files of a directory that is gone."""

    async def call(self, op: str, *, bound: float, **arguments: Any) -> dict[str, Any]:
        raise MountSick("gone", "the workspace went with its sandbox")

    async def mend(self, op: str, *, bound: float, **arguments: Any) -> dict[str, Any]:
        raise MountSick("gone", "the workspace went with its sandbox")

    async def edit(self, op: str, *, bound: float, **arguments: Any) -> dict[str, Any]:
        raise MountSick("gone", "the workspace went with its sandbox")

    async def held(self) -> set[int]:
        return set()

    async def close(self) -> None:
        """There is nothing to close."""


class StoredWorkspace(Workspace):
    """Its receipt says what the store has, and that more may have been lost."""

    def __init__(self, session_id: str, engine: Engine, store: Store, manifests: Manifests) -> None:
        super().__init__(session_id, NoFiles(), engine, store, manifests)
        self._objects = store
        self._manifests = manifests

    async def barrier(self, turn_id: str, epoch: int, also_held: Held = nobody) -> Proof:
        started = time.monotonic()
        try:
            entries = await self._entries()
            manifest = Manifest(self.session_id, turn_id, epoch, self.engine.name, entries)
            stored = await self._manifests.put(manifest)
        except StoreUnavailable as error:
            raise NotDurable(error.message, hint=error.hint, files={}, codes={}, more=0) from error
        files = [entry for entry in entries if entry.kind == "file"]
        return Proof(
            engine=self.engine.name,
            files=len(files),
            bytes=sum(entry.size or 0 for entry in files),
            manifest_sha256=stored,
            took=time.monotonic() - started,
            lost="the sandbox died: what it had not brought to the store by then is lost",
        )

    async def _entries(self) -> tuple[Entry, ...]:
        """Raises: StoreUnavailable."""
        latest = await self._manifests.latest(self.session_id)
        known = {} if latest is None else {entry.path: entry for entry in latest.entries}
        prefix = f"{self.session_id}/"
        found = [entry for entry in known.values() if entry.kind == "directory"]
        for path, item in (await self._objects.list(prefix)).items():
            found.append(await self._entry(prefix, path, item, known.get(path)))
        return tuple(sorted(found, key=lambda entry: entry.path))

    async def _entry(
        self, prefix: str, path: str, item: StoredObject, known: Entry | None
    ) -> Entry:
        if known is not None and item.size == 0 and known.kind == "symlink":
            return known
        if known is not None and (known.size, known.md5) == (item.size, item.etag):
            return known
        sha256 = await self._objects.sha256(prefix + path)
        mode = PLAIN_MODE if known is None else known.mode
        return Entry(path, "file", item.size, sha256, mode, time.time_ns(), None, item.etag)
