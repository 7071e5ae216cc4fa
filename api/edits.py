"""Changes that users make to a workspace: through the mount while there is one, else in the store.

The sidecar knows whether the workspace is mounted, and keeps it from being mounted while objects
are changed here. Which of the two it is may change between two looks, so both are tried in turn.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar
from uuid import UUID

from uuid_utils.compat import uuid7

from api.quota import Quotas
from api.sidecar import Sidecar
from api.store import Stores
from api.trees import Tree, missing
from contracts.bodies import Changed, Edited, FilesDeleted, Session
from contracts.errors import (
    FileExists,
    InvalidPath,
    SandboxNotFound,
    TooLarge,
    WorkspaceBusy,
    WorkspaceMounted,
)

T = TypeVar("T")

TRIES = 5
# What is smaller waits in memory; the rest in the state bucket, where no sandbox can see it.
SMALL_BYTES = 4 << 20


@dataclass(frozen=True)
class Staged:
    """A whole upload that has no place yet: its bytes, or the object that holds them."""

    data: bytes
    key: str | None = None
    size: int = 0


class Edits:
    def __init__(
        self,
        stores: Stores,
        sidecar: Sidecar,
        most_bytes: int,
        quotas: Quotas,
        check_kept: Callable[[UUID], Awaitable[None]],
    ) -> None:
        """`check_kept` raises for a session that is being deleted."""
        self._stores = stores
        self._quotas = quotas
        self._sidecar = sidecar
        self._most_bytes = most_bytes
        self._check_kept = check_kept

    async def put(
        self, session: Session, path: str, content: AsyncIterator[bytes], *, replace: bool
    ) -> Changed:
        """Raises: FileExists, InvalidPath, TooLarge, OverQuota, WorkspaceBusy, Unavailable."""
        session_id = session.id
        async with self._staged(session_id, content) as staged:
            await self._quotas.admit(session, staged.size)
            edits = [Edited(source=path)] if staged.key is None and not staged.data else []
            return await self._either(
                session_id,
                edits,
                lambda: self._sidecar.put_file(
                    session_id, path, self._content(session_id, staged), replace=replace
                ),
                lambda: self._put(session_id, path, staged, replace=replace),
            )

    async def mkdir(self, session_id: UUID, path: str) -> Changed:
        """Raises: FileExists, InvalidPath, WorkspaceBusy, Unavailable."""

        async def stored() -> Changed:
            tree = self._tree(session_id)
            await tree.must_be_free(path)
            return await tree.mkdir(path)

        return await self._either(
            session_id, [], lambda: self._sidecar.make_folder(session_id, path), stored
        )

    async def move(self, session_id: UUID, source: str, target: str) -> Changed:
        """Raises: FileNotFound, FileExists, InvalidPath, WorkspaceBusy, Unavailable."""
        if f"{target}/".startswith(f"{source}/"):
            raise InvalidPath("It cannot be moved into itself.", hint="Choose another place.")
        tree = self._tree(session_id)

        async def stored() -> Changed:
            await tree.must_be_free(target)
            return await tree.move(source, target)

        return await self._either(
            session_id,
            [Edited(source=source, target=target)],
            lambda: self._sidecar.move(session_id, source, target),
            stored,
            check=lambda: self._must_exist(tree, source),
        )

    async def delete(self, session_id: UUID, path: str) -> FilesDeleted:
        """Raises: FileNotFound, WorkspaceBusy, Unavailable."""
        tree = self._tree(session_id)
        return await self._either(
            session_id,
            [Edited(source=path)],
            lambda: self._sidecar.delete_file(session_id, path),
            lambda: tree.delete(path),
            check=lambda: self._must_exist(tree, path),
        )

    async def _either(
        self,
        session_id: UUID,
        edits: list[Edited],
        through_mount: Callable[[], Awaitable[T]],
        in_store: Callable[[], Awaitable[T]],
        check: Callable[[], Awaitable[None]] | None = None,
    ) -> T:
        """`check` is made before the store's way notes `edits`, which must not be for nothing."""
        for _ in range(TRIES):
            try:
                return await through_mount()
            except SandboxNotFound:
                pass
            if check is not None:
                await check()
            try:
                async with self._sidecar.hold(session_id, edits):
                    # A delete marks the session, and takes the workspace from the sidecar before it
                    # removes the objects: so it comes after this change, or is seen here.
                    await self._check_kept(session_id)
                    return await in_store()
            except WorkspaceMounted:
                continue
        raise WorkspaceBusy("The session's sandbox comes and goes.", hint="Try again.")

    def _tree(self, session_id: UUID) -> Tree:
        return Tree(self._stores.sessions, str(session_id))

    async def _must_exist(self, tree: Tree, path: str) -> None:
        if await tree.kind(path) is None:
            raise missing(path)

    async def _put(self, session_id: UUID, path: str, staged: Staged, *, replace: bool) -> Changed:
        tree = self._tree(session_id)
        found = await tree.kind(path)
        if found == "directory" or (found == "file" and not replace):
            raise FileExists(f"There is a {found} {path!r} already.", hint="Choose another name.")
        if staged.key is None:
            return await tree.put(path, staged.data)
        return await tree.take(path, self._stores.state, staged.key)

    @contextlib.asynccontextmanager
    async def _staged(
        self, session_id: UUID, content: AsyncIterator[bytes]
    ) -> AsyncIterator[Staged]:
        """All of an upload. Raises: TooLarge, StoreUnavailable."""
        held = bytearray()
        bounded = self._bounded(content)
        async for chunk in bounded:
            held += chunk
            if len(held) > SMALL_BYTES:
                break
        else:
            yield Staged(bytes(held), size=len(held))
            return
        size = 0

        async def everything() -> AsyncIterator[bytes]:
            nonlocal size
            size = len(held)
            yield bytes(held)
            async for chunk in bounded:
                size += len(chunk)
                yield chunk

        key = f"{session_id}/uploads/{uuid7().hex}"
        await self._stores.state.upload(key, everything())
        try:
            yield Staged(b"", key, size)
        finally:
            await self._stores.state.remove([key])

    async def _bounded(self, content: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        size = 0
        async for chunk in content:
            size += len(chunk)
            if size > self._most_bytes:
                raise TooLarge(
                    f"The file is larger than {self._most_bytes} bytes.",
                    hint="HOLDFAST_UPLOAD_BYTES is the limit.",
                )
            yield chunk

    async def _content(self, session_id: UUID, staged: Staged) -> AsyncIterator[bytes]:
        if staged.key is None:
            yield staged.data
            return
        path = staged.key.partition("/")[2]
        async with self._stores.state.open(session_id, path) as file:
            async for chunk in file.chunks:
                yield chunk
