"""The live view: the workspace as the sandbox sees it right now, read through the mount."""

from __future__ import annotations

import base64
import errno
from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime
from typing import Any

from contracts.bodies import FileEntry, FilePage
from contracts.errors import FileNotFound
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


async def listing(workspace: Workspace, path: str) -> FilePage:
    """A directory, with what is not as the last receipt has it marked.

    Raises: FileNotFound, MountSick, StoreUnavailable.
    """
    answer = await _call(workspace, "listing", path)
    manifest = await workspace.manifests.latest(workspace.session_id)
    proven = {} if manifest is None else _in_directory(manifest.entries, path)
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
    return FilePage(path=path, entries=entries, removed=removed)


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


async def _call(workspace: Workspace, op: str, path: str, **more: int) -> dict[str, Any]:
    try:
        return await workspace.files.call(op, bound=SECONDS, path=path, **more)
    except MountSick as sick:
        if sick.kind in OF_THE_PATH:
            raise FileNotFound(f"{path or 'the workspace'}: {sick.message}") from sick
        raise
