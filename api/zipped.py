"""A folder of the store as a zip archive, made while it is sent."""

from __future__ import annotations

import asyncio
import io
import zipfile
from collections.abc import AsyncIterator
from datetime import datetime
from typing import Any
from uuid import UUID

from api.store import Store
from contracts.errors import FileNotFound, TooLarge

# Little is gained by more, and it is the api's time.
LEVEL = 1
# The earliest that the format can tell.
FIRST_YEAR = 1980


class Archives:
    """How large a folder may be that is packed; 0 means: of any size."""

    def __init__(self, most_bytes: int, most_files: int) -> None:
        self._most_bytes = most_bytes
        self._most_files = most_files

    async def check(self, store: Store, session_id: UUID, path: str) -> None:
        """Raises: TooLarge, StoreUnavailable."""
        if not self._most_bytes and not self._most_files:
            return
        found = await store.measure(f"{session_id}/{path}")
        hint = "Take folders of it, or its files one by one."
        if self._most_files and found.objects > self._most_files:
            raise TooLarge(
                f"The folder has {found.objects} files, the limit of an archive is"
                f" {self._most_files} (HOLDFAST_ZIP_FILES).",
                hint=hint,
            )
        if self._most_bytes and found.bytes > self._most_bytes:
            raise TooLarge(
                f"The folder has {found.bytes} bytes, the limit of an archive is"
                f" {self._most_bytes} (HOLDFAST_ZIP_BYTES).",
                hint=hint,
            )


class _Sink(io.RawIOBase):
    """What the archive writes, to be taken away; it cannot seek, so nothing is ever rewritten."""

    def __init__(self) -> None:
        self._held = bytearray()

    def writable(self) -> bool:
        return True

    def write(self, data: Any, /) -> int:
        piece = bytes(memoryview(data))
        self._held += piece
        return len(piece)

    def take(self) -> bytes:
        taken, self._held = bytes(self._held), bytearray()
        return taken


async def zipped(store: Store, session_id: UUID, path: str) -> AsyncIterator[bytes]:
    """Names in the archive are relative to the folder.

    Raises: StoreUnavailable, in the middle of it: then the archive has no end and is not one.
    """
    sink = _Sink()
    prefix = f"{session_id}/{path}/" if path else f"{session_id}/"
    with zipfile.ZipFile(
        sink, "w", zipfile.ZIP_DEFLATED, allowZip64=True, compresslevel=LEVEL
    ) as archive:
        async for key in store.keys(prefix):
            name = key[len(prefix) :]
            if not _is_plain(name):
                continue
            if name.endswith("/"):
                archive.writestr(zipfile.ZipInfo(name), b"")
            else:
                async for piece in _file(archive, sink, store, session_id, key, name):
                    yield piece
            yield sink.take()
    yield sink.take()


async def _file(
    archive: zipfile.ZipFile, sink: _Sink, store: Store, session_id: UUID, key: str, name: str
) -> AsyncIterator[bytes]:
    try:
        async with store.open(session_id, key.partition("/")[2]) as file:
            with archive.open(_info(name, file.modified_at), "w", force_zip64=True) as entry:
                async for chunk in file.chunks:
                    await asyncio.to_thread(entry.write, chunk)
                    yield sink.take()
    except FileNotFound:
        return  # deleted since it was listed


def _is_plain(name: str) -> bool:
    """Whoever unpacks the archive may believe its names."""
    steps = name.removesuffix("/").split("/")
    return not any(step in ("", ".", "..") or "\\" in step or "\0" in step for step in steps)


def _info(name: str, at: datetime) -> zipfile.ZipInfo:
    info = zipfile.ZipInfo(name, (max(FIRST_YEAR, at.year), *at.timetuple()[1:6]))
    info.compress_type = zipfile.ZIP_DEFLATED
    info.external_attr = 0o644 << 16
    return info
