"""A session's objects as a tree of files and folders, changed over S3 while nothing mounts it."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Literal

from api.store import Store
from contracts.bodies import Changed, FilesDeleted
from contracts.errors import FileExists, FileNotFound, InvalidPath

Kind = Literal["file", "directory"]


class Tree:
    """Whole segments only: what is done to `a` never touches `ab`. Raises, in every call:
    StoreUnavailable."""

    def __init__(self, store: Store, root: str) -> None:
        self._store = store
        self._root = root

    async def kind(self, path: str) -> Kind | None:
        """What a path names; None for nothing.

        Raises: InvalidPath when a file is where a folder would have to be.
        """
        above = path
        while "/" in above:
            above = above.rpartition("/")[0]
            if await self._store.head(self._key(above)) is not None:
                raise InvalidPath(f"{above!r} is not a folder.", hint="Choose another place.")
        if await self._store.head(self._key(path)) is not None:
            return "file"
        return "directory" if await self._store.has_directory(self._key(path)) else None

    async def must_be_free(self, path: str) -> None:
        """Raises: FileExists, InvalidPath."""
        found = await self.kind(path)
        if found is not None:
            raise FileExists(f"There is a {found} {path!r} already.", hint="Choose another name.")

    async def put(self, path: str, data: bytes) -> Changed:
        await self._store.put(self._key(path), data)
        return _changed(path, "file", len(data))

    async def take(self, path: str, store: Store, key: str) -> Changed:
        """A file that is an object of another bucket."""
        await store.copy(key, self._store, self._key(path))
        found = await self._store.head(self._key(path))
        return _changed(path, "file", found)

    async def mkdir(self, path: str) -> Changed:
        await self._store.put(self._key(path) + "/", b"")
        return _changed(path, "directory", None)

    async def move(self, source: str, target: str) -> Changed:
        """Raises: FileNotFound. What it is broken off in, is in both places at worst."""
        found = await self.kind(source)
        if found is None:
            raise missing(source)
        if found == "file":
            await self._store.copy(self._key(source), self._store, self._key(target))
            await self._store.remove([self._key(source)])
            size = await self._store.head(self._key(target))
            return _changed(target, "file", size)
        old, new = self._key(source) + "/", self._key(target) + "/"
        await self._store.put(new, b"")  # a folder without files is one too
        async for key in self._store.keys(old):
            moved = new + key[len(old) :]
            if key.endswith("/"):
                await self._store.put(moved, b"")
            else:
                await self._store.copy(key, self._store, moved)
        await self._store.delete_tree(old)
        return _changed(target, "directory", None)

    async def delete(self, path: str) -> FilesDeleted:
        """Raises: FileNotFound."""
        found = await self.kind(path)
        if found is None:
            raise missing(path)
        if found == "file":
            await self._store.remove([self._key(path)])
            return FilesDeleted(path=path, files=1, directories=0, via="store")
        folders = await self._store.directories(self._key(path) + "/")
        files = await self._store.delete_tree(self._key(path))
        return FilesDeleted(path=path, files=files, directories=len(folders), via="store")

    def _key(self, path: str) -> str:
        return f"{self._root}/{path}"


def _changed(path: str, kind: Kind, size: int | None) -> Changed:
    return Changed(
        path=path,
        name=path.rpartition("/")[2],
        kind=kind,
        size=size,
        modified_at=datetime.now(UTC),
        via="store",
    )


def missing(path: str) -> FileNotFound:
    return FileNotFound(f"There is no {path!r} in the workspace.", hint="Look at its folder.")
