"""Files of a session: the durable view (from the store) and the live one (from the sandbox)."""

from __future__ import annotations

import asyncio
import re
import tempfile
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from client.sessions import Id, next_cursor, session_path
from client.wire import SLOW_TIMEOUT, Wire, segments
from contracts import errors
from contracts.bodies import Changed, FileEntry, FilePage, FilesDeleted, FolderCreate, Move

PAGE = 1000
CHUNK_BYTES = 1 << 20


class Files:
    """`hf.files`: what is in the store."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire

    async def list(self, session_id: Id, path: str = "") -> AsyncIterator[FileEntry]:
        """Every name in a directory, all pages of it.

        Raises: SessionNotFound, FileNotFound, InvalidPath.
        """
        route = f"{session_path(session_id)}/files"
        async for entry in list_pages(self._wire, route, path, limit=PAGE):
            yield entry

    async def read(self, session_id: Id, path: str) -> bytes:
        """A whole file.

        Raises: SessionNotFound, FileNotFound, InvalidPath.
        """
        async with self._wire.open("GET", self._path(session_id, path)) as response:
            return await response.aread()

    async def chunks(self, session_id: Id, path: str) -> AsyncGenerator[bytes, None]:
        """A whole file piece by piece, of any size.

        Raises: as `read`.
        """
        async with self._wire.open("GET", self._path(session_id, path)) as response:
            async for chunk in response.aiter_bytes(CHUNK_BYTES):
                yield chunk

    async def read_range(self, session_id: Id, path: str, start: int, stop: int) -> bytes:
        """The bytes from `start` up to, not including, `stop`; fewer where the file ends.

        Raises: RangeNotSatisfiable when `start` is past the end; else as `read`.
        """
        if not 0 <= start < stop:
            raise errors.RangeNotSatisfiable(f"{start}..{stop} is not a range of bytes")
        headers = {"Range": f"bytes={start}-{stop - 1}"}
        async with self._wire.open(
            "GET", self._path(session_id, path), headers=headers
        ) as response:
            told = re.match(r"bytes (\d+)-", response.headers.get("Content-Range", ""))
            if response.status_code != 206 or told is None or int(told[1]) != start:
                raise errors.HoldfastError(f"the api did not answer the range that starts {start}")
            return await response.aread()

    async def download(self, session_id: Id, path: str, to: Path) -> int:
        """Writes a file to `to`, which appears only when it is whole; returns its size.

        Raises: as `read`; OSError when `to` cannot be written.
        """
        size = 0
        async with (
            self._wire.open("GET", self._path(session_id, path), params={"download": 1}) as answer,
            _whole_file(to) as part,
        ):
            async for chunk in answer.aiter_bytes(CHUNK_BYTES):
                await asyncio.to_thread(_append, part, chunk)
                size += len(chunk)
        return size

    async def put(
        self,
        session_id: Id,
        path: str,
        content: bytes | AsyncIterator[bytes],
        *,
        replace: bool = True,
    ) -> Changed:
        """Puts a file into the workspace; the folders above it are made.

        Raises: SessionNotFound, FileExists, InvalidPath, TooLarge, Unavailable.
        """
        route = self._path(session_id, path)
        async with self._wire.open(
            "PUT", route, params={"replace": replace}, content=content, limits=SLOW_TIMEOUT
        ) as response:
            return Changed.model_validate_json(await response.aread())

    async def mkdir(self, session_id: Id, path: str) -> Changed:
        """Raises: SessionNotFound, FileExists, InvalidPath, Unavailable."""
        route = f"{session_path(session_id)}/folders"
        return await self._wire.call("POST", route, Changed, body=FolderCreate(path=path))

    async def move(self, session_id: Id, source: str, target: str) -> Changed:
        """Raises: SessionNotFound, FileNotFound, FileExists, InvalidPath, Unavailable."""
        route, body = f"{session_path(session_id)}/move", Move(source=source, target=target)
        return await self._wire.call("POST", route, Changed, body=body, limits=SLOW_TIMEOUT)

    async def delete(self, session_id: Id, path: str) -> FilesDeleted:
        """Deletes a file, or a folder with all that is in it.

        Raises: SessionNotFound, FileNotFound, InvalidPath, Unavailable.
        """
        return await self._wire.call(
            "DELETE", self._path(session_id, path), FilesDeleted, limits=SLOW_TIMEOUT
        )

    async def zip(self, session_id: Id, path: str = "") -> AsyncGenerator[bytes, None]:
        """A folder as a zip archive, piece by piece.

        Raises: SessionNotFound, FileNotFound, InvalidPath, Unavailable.
        """
        route = f"{session_path(session_id)}/zip"
        async with self._wire.open("GET", route, params={"path": path}) as response:
            async for chunk in response.aiter_bytes(CHUNK_BYTES):
                yield chunk

    def _path(self, session_id: Id, path: str) -> str:
        if not path:
            raise errors.InvalidPath("a file has a name", hint="list the directory instead")
        return f"{session_path(session_id)}/files/{segments(path)}"


class Live:
    """`hf.live`: what the session's sandbox sees right now."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire

    async def list(self, session_id: Id, path: str = "") -> AsyncIterator[FileEntry]:
        """Raises: SessionNotFound, SandboxNotFound, FileNotFound, InvalidPath."""
        async for entry in list_pages(self._wire, f"{session_path(session_id)}/live", path):
            yield entry

    async def read(self, session_id: Id, path: str) -> bytes:
        """Raises: SessionNotFound, SandboxNotFound, FileNotFound, InvalidPath."""
        route = f"{session_path(session_id)}/live/file"
        async with self._wire.open("GET", route, params={"path": path}) as response:
            return await response.aread()


async def list_pages(
    wire: Wire, route: str, path: str, *, limit: int | None = None
) -> AsyncIterator[FileEntry]:
    cursor: str | None = None
    while True:
        page = await wire.call(
            "GET", route, FilePage, params={"path": path, "limit": limit, "cursor": cursor}
        )
        for entry in page.entries:
            yield entry
        cursor = next_cursor(cursor, page.next_cursor)
        if cursor is None:
            return


@asynccontextmanager
async def _whole_file(to: Path) -> AsyncIterator[Path]:
    """A part file beside `to` that takes its place at the end, or is removed."""
    part = await asyncio.to_thread(_part_of, to)
    try:
        yield part
        await asyncio.to_thread(part.replace, to)
    finally:
        await asyncio.to_thread(part.unlink, missing_ok=True)


def _part_of(to: Path) -> Path:
    with tempfile.NamedTemporaryFile(
        dir=to.parent, prefix=f".{to.name}.", suffix=".part", delete=False
    ) as handle:
        return Path(handle.name)


def _append(part: Path, chunk: bytes) -> None:
    with part.open("ab") as handle:
        handle.write(chunk)
