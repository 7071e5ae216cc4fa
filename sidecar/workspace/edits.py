"""Changes that a user makes to a mounted workspace: through the mount, as the sandbox sees it."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import errno
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any

from contracts.bodies import Changed, FilesDeleted
from contracts.errors import FileExists, FileNotFound, HoldfastError, InvalidPath
from sidecar.boxhost.contract import MountSick
from sidecar.tasks import finish
from sidecar.workspace.engine import Workspace
from sidecar.workspace.manifest import Edit

SECONDS = 60
# Any number of names may be deleted.
DELETE_SECONDS = 600
# What a piece takes in memory, three times over.
PIECE_BYTES = 4 << 20
# Whose fault it is, when it is not the mount's.
OF_THE_PATH: dict[str, type[HoldfastError]] = {
    f"errno {number}": error
    for number, error in {
        errno.ENOENT: FileNotFound,
        errno.EEXIST: FileExists,
        errno.EISDIR: FileExists,
        errno.ENOTEMPTY: FileExists,
        errno.ENOTDIR: InvalidPath,
        errno.ELOOP: InvalidPath,
        errno.EINVAL: InvalidPath,
        errno.ENAMETOOLONG: InvalidPath,
    }.items()
}


async def put(
    workspace: Workspace, path: str, content: AsyncIterator[bytes], *, replace: bool
) -> Changed:
    """A file, which appears when it is whole and in the store.

    Raises: FileExists, InvalidPath, MountSick, and what `content` raises.
    """
    began = await _edit(workspace, "begin", path, path=path, replace=replace)
    name, offset = began["name"], 0
    try:
        async for piece in pieces(content):
            data = base64.b64encode(piece).decode()
            await _edit(workspace, "piece", path, path=path, name=name, offset=offset, data=data)
            offset += len(piece)
        if offset == 0:  # a link is an empty object too: the last manifest must not say so
            await workspace.manifests.edited(workspace.session_id, Edit(path))
        done = await _edit(workspace, "finish", path, path=path, name=name, replace=replace)
    except BaseException:
        with contextlib.suppress(HoldfastError, TimeoutError):
            await finish(_abandon(workspace, path, name), SECONDS)
        raise
    await workspace.sync()
    return _entry(path, done)


async def _abandon(workspace: Workspace, path: str, name: str) -> None:
    await _edit(workspace, "abandon", path, path=path, name=name)


async def pieces(content: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """The same bytes in pieces of one size."""
    held = bytearray()
    async for chunk in content:
        held += chunk
        while len(held) >= PIECE_BYTES:
            yield bytes(held[:PIECE_BYTES])
            del held[:PIECE_BYTES]
        await asyncio.sleep(0)
    if held:
        yield bytes(held)


async def mkdir(workspace: Workspace, path: str) -> Changed:
    """Raises: FileExists, InvalidPath, MountSick."""
    done = await _edit(workspace, "mkdir", path, path=path)
    await workspace.sync()
    return _entry(path, done)


async def move(workspace: Workspace, source: str, target: str) -> Changed:
    """Raises: FileNotFound, FileExists, InvalidPath, MountSick, StoreUnavailable."""
    done = await _edit(workspace, "move", source, source=source, target=target)
    await workspace.manifests.edited(workspace.session_id, Edit(source, target))
    await workspace.sync()
    return _entry(target, done)


async def delete(workspace: Workspace, path: str) -> FilesDeleted:
    """Raises: FileNotFound, InvalidPath, MountSick, StoreUnavailable."""
    done = await _edit(workspace, "delete", path, bound=DELETE_SECONDS, path=path)
    await workspace.manifests.edited(workspace.session_id, Edit(path))
    await workspace.sync()
    return FilesDeleted(path=path, via="mount", **done)


async def _edit(
    workspace: Workspace, op: str, shown: str, *, bound: float = SECONDS, **arguments: Any
) -> dict[str, Any]:
    try:
        return await workspace.files.edit(op, bound=bound, **arguments)
    except MountSick as sick:
        of_the_path = OF_THE_PATH.get(sick.kind)
        if of_the_path is not None:
            raise of_the_path(f"{shown}: {sick.message}") from sick
        raise


def _entry(path: str, done: dict[str, Any]) -> Changed:
    return Changed(
        path=path,
        name=path.rpartition("/")[2],
        kind=done["kind"],
        size=done["size"],
        modified_at=datetime.fromtimestamp(done["mtime"], UTC),
        via="mount",
    )
