"""What a turn has changed: its manifest, held against the one of the last receipt before it."""

from __future__ import annotations

import asyncio
import json
from typing import Any
from uuid import UUID

from api.store import Stores
from contracts.bodies import Change, Changes

# A first turn may leave a hundred thousand files; nobody reads them one by one.
MOST_LISTED = 1000
CONTENT = ("kind", "sha256", "target")


async def changes(stores: Stores, session_id: UUID, turn_id: UUID, before: UUID | None) -> Changes:
    """Raises: NotFound when a manifest is missing, StoreUnavailable."""
    new = await stores.manifest(session_id, turn_id)
    old = await stores.manifest(session_id, before) if before is not None else b'{"entries":[]}'
    return await asyncio.to_thread(_compared, turn_id, before, new, old)


def _compared(turn_id: UUID, before: UUID | None, new: bytes, old: bytes) -> Changes:
    now, then = _entries(new), _entries(old)
    added = [_change(now[path], None) for path in sorted(now.keys() - then.keys())]
    removed = [_change(then[path], then[path]) for path in sorted(then.keys() - now.keys())]
    changed = [
        _change(now[path], then[path])
        for path in sorted(now.keys() & then.keys())
        if any(now[path].get(name) != then[path].get(name) for name in CONTENT)
    ]
    listed, cut = [], False
    left = MOST_LISTED
    for found in (added, changed, removed):
        listed.append(found[:left])
        cut = cut or len(found) > left
        left -= len(listed[-1])
    return Changes(
        turn_id=turn_id,
        since=before,
        added=listed[0],
        changed=listed[1],
        removed=listed[2],
        cut=cut,
    )


def _entries(document: bytes) -> dict[str, dict[str, Any]]:
    return {entry["path"]: entry for entry in json.loads(document)["entries"]}


def _change(entry: dict[str, Any], then: dict[str, Any] | None) -> Change:
    return Change(
        path=entry["path"],
        kind=entry["kind"],
        size=None if entry is then else entry.get("size"),
        size_before=None if then is None else then.get("size"),
    )
