"""The barrier: no turn is acknowledged before the store, asked by another client, has it all."""

from __future__ import annotations

import asyncio
import hashlib
import time
from dataclasses import dataclass
from typing import Any

from contracts.errors import NotDurable
from contracts.events import dumps
from sidecar.workspace.host_files import HostFiles, MountSick
from sidecar.workspace.store import Store, StoredObject

WALK_SECONDS = 200  # weed's fsync has been seen to take 127 s with the store away
TRIES = 20
PAUSE_SECONDS = 0.25
MOST_NAMED = 20


@dataclass(frozen=True)
class Proof:
    """What the store has, as compared with what the sandbox sees."""

    engine: str
    files: int
    bytes: int
    manifest_sha256: str
    took: float


class Barrier:
    def __init__(
        self, files: HostFiles, store: Store, session_id: str, engine: str, sync_root: bool
    ) -> None:
        self._files = files
        self._store = store
        self._prefix = f"{session_id}/"
        self._engine = engine
        self._sync_root = sync_root
        self._proven: dict[str, str] = {}  # path -> sha256 that the store was seen to have

    async def prove(self) -> Proof:
        """Raises: NotDurable, with the files and the reason for each; StoreUnavailable."""
        started = time.monotonic()
        missing: dict[str, str] = {}
        for _ in range(TRIES):
            try:
                seen = await self._files.call("walk", bound=WALK_SECONDS, sync_root=self._sync_root)
            except MountSick as sick:
                raise NotDurable(
                    f"the workspace cannot be read: {sick.message}", hint=sick.hint
                ) from sick
            missing = {problem["path"]: problem["reason"] for problem in seen["problems"]}
            missing |= await self._differences(seen["entries"])
            for name in seen["odd_names"]:
                missing[name] = "its name cannot be kept: rename it (valid UTF-8, no backslash)"
            if not missing:
                return self._proof(seen["entries"], time.monotonic() - started)
            if seen["odd_names"] and len(missing) == len(seen["odd_names"]):
                break  # waiting does not mend a name
            await asyncio.sleep(PAUSE_SECONDS)
        names = ", ".join(f"{path} ({reason})" for path, reason in list(missing.items())[:5])
        raise NotDurable(
            f"{len(missing)} files are not proven to be in the store: {names}",
            hint="The turn's work is in the sandbox; run another turn to try again.",
            files=dict(list(missing.items())[:MOST_NAMED]),
        )

    async def _differences(self, entries: list[dict[str, Any]]) -> dict[str, str]:
        """What the store has not, has otherwise, or still has although it was deleted."""
        stored = await self._store.list(self._prefix)
        differences: dict[str, str] = {}
        proven: dict[str, str] = {}
        here = set()
        for entry in entries:
            path = entry["path"]
            here.add(path)
            if entry["kind"] != "file" or "sha256" not in entry:
                continue
            reason = await self._difference(entry, stored.get(path))
            if reason:
                differences[path] = reason
            else:
                proven[path] = entry["sha256"]
        for path in stored.keys() - here:
            differences[path] = "it is deleted here but still in the store"
        self._proven = proven
        return differences

    async def _difference(self, entry: dict[str, Any], stored: StoredObject | None) -> str:
        if stored is None:
            return "the store does not have it"
        if stored.size != entry["size"]:
            return f"the store has {stored.size} of {entry['size']} bytes"
        if self._proven.get(entry["path"]) == entry["sha256"]:
            return ""
        if stored.etag == entry["md5"]:
            return ""
        # An ETag is the md5 only of what was stored in one piece: read the bytes themselves.
        if await self._store.sha256(self._prefix + entry["path"]) == entry["sha256"]:
            return ""
        return "the store has other bytes"

    def _proof(self, entries: list[dict[str, Any]], took: float) -> Proof:
        manifest = [
            [e["path"], e["kind"], e.get("size"), e.get("sha256"), e["mode"], e.get("target")]
            for e in sorted(entries, key=lambda entry: str(entry["path"]))
        ]
        files = [entry for entry in entries if entry["kind"] == "file"]
        return Proof(
            engine=self._engine,
            files=len(files),
            bytes=sum(entry["size"] for entry in files),
            manifest_sha256=hashlib.sha256(dumps(manifest)).hexdigest(),
            took=took,
        )
