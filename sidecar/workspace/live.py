"""The live view: the workspace as the sandbox sees it right now, read through the mount."""

from __future__ import annotations

import base64
import binascii
import errno
import json
from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime
from typing import Any

from contracts.bodies import FileEntry, FilePage
from contracts.errors import FileNotFound, InvalidInput
from sidecar.boxhost.contract import MountSick
from sidecar.workspace.engine import Workspace
from sidecar.workspace.manifest import Entry

CHUNK = 1 << 20
SECONDS = 30
# The caller's path is at fault, not the mount.
OF_THE_PATH = {
    f"errno {number}"
    for number in (errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.EINVAL)
}


async def listing(
    workspace: Workspace, path: str, limit: int = 1000, cursor: str | None = None
) -> FilePage:
    """A page of a directory, with what is not as the last receipt has it marked.

    Raises: FileNotFound, InvalidInput for a foreign cursor, MountSick, StoreUnavailable.
    """
    after = "" if cursor is None else _after(cursor, path)
    answer = await _call(workspace, "listing", path, after=after, limit=limit)
    upto = answer["upto"]
    manifest = await workspace.manifests.latest(workspace.session_id)
    known = {} if manifest is None else _in_directory(manifest.entries, path)
    proven = {n: each for n, each in known.items() if n > after and (not upto or n <= upto)}
    entries = [
        FileEntry(
            path=f"{path}/{item['name']}" if path else item["name"],
            name=item["name"],
            kind=item["kind"],
            size=item["size"] if item["kind"] == "file" else None,
            modified_at=datetime.fromtimestamp(item["mtime"], UTC),
            durable=_as_proven(item, proven.get(item["name"]), workspace.engine.mtime_grain_ns),
        )
        for item in answer["entries"]
        if item["kind"] != "special"
    ]
    there = {entry.name for entry in entries}
    removed = sorted(proven[name].path for name in proven.keys() - there)
    next_cursor = _cursor(path, upto) if upto else None
    return FilePage(path=path, entries=entries, removed=removed, next_cursor=next_cursor)


def _cursor(path: str, upto: str) -> str:
    return base64.urlsafe_b64encode(json.dumps([path, upto]).encode()).decode()


def _after(cursor: str, path: str) -> str:
    """The last name of the page before. Raises: InvalidInput."""
    try:
        asked, after = json.loads(base64.urlsafe_b64decode(cursor.encode()))
    except (ValueError, TypeError, RecursionError, binascii.Error):
        asked = after = None
    if asked != path or not isinstance(after, str):
        raise InvalidInput(
            "this cursor is not of this directory", hint="Start from the first page."
        )
    return after


def _in_directory(entries: Sequence[Entry], path: str) -> dict[str, Entry]:
    """What a manifest has directly in a directory, by name."""
    prefix = f"{path}/" if path else ""
    below = (entry for entry in entries if entry.path.startswith(prefix))
    named = ((entry.path[len(prefix) :], entry) for entry in below)
    return {name: entry for name, entry in named if "/" not in name and entry.kind != "special"}


def _as_proven(item: dict[str, Any], entry: Entry | None, grain_ns: int) -> bool:
    """Cheap: a file is told by its size and time, and of a directory only that it was there."""
    if entry is None or entry.kind != item["kind"]:
        return False
    if entry.kind != "file":
        return True
    same_time = item["mtime_ns"] // grain_ns == entry.mtime_ns // grain_ns
    return bool(item["size"] == entry.size and same_time)


async def first_chunk(workspace: Workspace, path: str) -> tuple[bytes, int]:
    """The beginning of a file, and its size. Raises: FileNotFound, MountSick."""
    answer = await _call(workspace, "read", path, offset=0, size=CHUNK)
    return base64.b64decode(answer["data"]), answer["size"]


async def content(workspace: Workspace, path: str, first: bytes, size: int) -> AsyncIterator[bytes]:
    """The whole file in pieces, of which the first is known already."""
    yield first
    offset = len(first)
    while first and offset < size:
        answer = await _call(workspace, "read", path, offset=offset, size=CHUNK)
        first = base64.b64decode(answer["data"])
        offset += len(first)
        yield first


async def _call(workspace: Workspace, op: str, path: str, **more: int | str) -> dict[str, Any]:
    try:
        return await workspace.files.call(op, bound=SECONDS, path=path, **more)
    except MountSick as sick:
        if sick.kind in OF_THE_PATH:
            raise FileNotFound(f"{path or 'the workspace'}: {sick.message}") from sick
        raise
