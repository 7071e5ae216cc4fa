"""The live view: the workspace as the sandbox sees it right now, read through the mount."""

from __future__ import annotations

import base64
import errno
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any

from contracts.bodies import FileEntry, FilePage
from contracts.errors import FileNotFound
from sidecar.boxhost.contract import MountSick
from sidecar.workspace.engine import Workspace

CHUNK = 1 << 20
SECONDS = 30
# The caller's path is at fault, not the mount.
OF_THE_PATH = {
    f"errno {number}"
    for number in (errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.EINVAL)
}


async def listing(workspace: Workspace, path: str) -> FilePage:
    """Raises: FileNotFound, MountSick."""
    answer = await _call(workspace, "listing", path)
    entries = [
        FileEntry(
            path=f"{path}/{item['name']}" if path else item["name"],
            name=item["name"],
            kind=item["kind"],
            size=item["size"] if item["kind"] == "file" else None,
            modified_at=datetime.fromtimestamp(item["mtime"], UTC),
        )
        for item in answer["entries"]
        if item["kind"] != "special"
    ]
    return FilePage(path=path, entries=entries)


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
