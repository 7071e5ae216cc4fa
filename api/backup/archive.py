"""The file: a tar (POSIX.1-2001), written and read from its beginning to its end, never sought in.

| member | what |
|---|---|
| `holdfast-backup.json` | first: format, time, schema, the columns of every table |
| `files/<session>/…`, `state/<session>/…` | objects; of one that comes twice the second counts |
| `rows/<session>/<table>/<n>` | the session's rows, as COPY's text |
| `sessions/<session>.json` | behind all of a session: what belongs to it, with sha256 of each |
| `rows/-/<table>/<n>` | rows of no session |
| `manifest.json` | last: the sha256 of every `sessions/…` and `rows/-/…`; without it, no backup |
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import tarfile
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import IO, Any

from api.backup.errors import BadBackup

FORMAT = 1
HEAD, MANIFEST = "holdfast-backup.json", "manifest.json"
# The two buckets, by what they are for: in another stack they may have other names.
FILES, STATE = "files", "state"
CHUNK_BYTES = 1 << 20
# The most that is read at once: the list of a session's files, a part of a table.
MOST_BYTES = 1 << 30
METADATA = "HOLDFAST.metadata"
BLOCK = tarfile.BLOCKSIZE


@dataclass(frozen=True)
class Written:
    """A member, as the lists name it."""

    size: int
    sha256: str


class Writer:
    """Members, one behind the other."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.bytes = 0

    async def add_json(self, name: str, value: Any) -> Written:
        return await self.add_bytes(name, json.dumps(value, separators=(",", ":")).encode())

    async def add_bytes(self, name: str, data: bytes) -> Written:
        async def once() -> AsyncIterator[bytes]:
            yield data

        written = await self.add(name, len(data), once())
        assert written is not None
        return written

    async def add(
        self,
        name: str,
        size: int,
        chunks: AsyncIterator[bytes],
        metadata: Mapping[str, str] | None = None,
    ) -> Written | None:
        """A member whose size is told before its bytes come; None when they are not as many, and
        then it counts for nothing.

        Raises: what `chunks` raises; the member counts for nothing then, too.
        """
        info = tarfile.TarInfo(name)
        info.size, info.mode = size, 0o600
        if metadata:
            info.pax_headers = {METADATA: json.dumps(dict(metadata), sort_keys=True)}
        await self._write(info.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape"))
        digest, sent, as_told = hashlib.sha256(), 0, True
        try:
            async for chunk in chunks:
                if sent + len(chunk) > size:
                    as_told = False
                    break
                digest.update(chunk)
                sent += len(chunk)
                await self._write(chunk)
        except Exception:
            await self._fill(sent, size)
            raise
        await self._fill(sent, size)
        return Written(size, digest.hexdigest()) if as_told and sent == size else None

    async def end(self) -> None:
        await self._write(bytes(2 * BLOCK))
        await asyncio.to_thread(self._file.flush)

    async def _fill(self, sent: int, size: int) -> None:
        """The header has promised `size` bytes, and members begin at a block."""
        missing = size - sent + -size % BLOCK
        while missing > 0:
            await self._write(bytes(min(missing, CHUNK_BYTES)))
            missing -= CHUNK_BYTES

    async def _write(self, data: bytes) -> None:
        await asyncio.to_thread(self._file.write, data)
        self.bytes += len(data)


class Member:
    """A member whose bytes can be read once, before the next one is asked for."""

    def __init__(self, info: tarfile.TarInfo, content: IO[bytes]) -> None:
        self.name = info.name
        self.size = info.size
        self.metadata: dict[str, str] = json.loads(info.pax_headers.get(METADATA, "{}"))
        self._content = content
        self._digest = hashlib.sha256()

    async def chunks(self) -> AsyncIterator[bytes]:
        """Raises: BadBackup, when the file ends in the middle."""
        while chunk := await _read(self._content.read, CHUNK_BYTES):
            self._digest.update(chunk)
            yield chunk

    async def read(self) -> bytes:
        """Raises: BadBackup."""
        if self.size > MOST_BYTES:
            raise BadBackup(f"{self.name} has {self.size} bytes, which no backup's has.")
        return b"".join([chunk async for chunk in self.chunks()])

    async def json(self) -> Any:
        """Raises: BadBackup."""
        try:
            return json.loads(await self.read())
        except ValueError as error:
            raise BadBackup(f"{self.name} is not JSON.") from error

    @property
    def written(self) -> Written:
        """What was read, after all of it was."""
        return Written(self.size, self._digest.hexdigest())


async def members(file: IO[bytes]) -> AsyncIterator[Member]:
    """Every member in its order.

    Raises: BadBackup, when it is no tar, or one that breaks off.
    """
    tar = await _read(tarfile.open, None, "r|", file)
    while (info := await _read(tar.next)) is not None:
        tar.members.clear()  # it would keep every one
        content = tar.extractfile(info) if info.isreg() else None
        if content is None:
            raise BadBackup(f"{info.name} is no file.", hint="This is not a backup of Holdfast.")
        yield Member(info, content)


async def _read(call: Any, *args: Any) -> Any:
    try:
        return await asyncio.to_thread(call, *args)
    except (tarfile.TarError, EOFError, ValueError) as error:
        raise BadBackup(
            f"The file cannot be read as a backup: {error}",
            hint="It may have been cut off; take another one.",
        ) from error
