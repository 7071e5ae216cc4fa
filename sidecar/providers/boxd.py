"""The sidecar's end of boxd, our hands in a sandbox (sandbox-image/boxd), by a unix socket.

Who answers there is not trusted: the sandbox's user could take its place. So its sockets are opened
without following a link, what it sends is bounded and checked, and it is told nothing secret that
is not the sandbox's own.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import stat
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Protocol

from sidecar.providers.boxd_answers import parse_head
from sidecar.tasks import finish

CONNECT_SECONDS = 5
ANSWER_SECONDS = 120
GIVE_UP_SECONDS = 15
LONGEST_LINE = 16 << 20


class NoAnswer(Exception):
    """Nobody is there, or nobody who talks like boxd."""


class Link(Protocol):
    """A way to boxd. Answers are parsed (boxd_answers.py). Raises, in every call: NoAnswer,
    Refused."""

    async def call(
        self, op: str, body: bytes = b"", *, bound: float | None = ANSWER_SECONDS, **fields: Any
    ) -> tuple[dict[str, Any], bytes]: ...

    async def freeze(self, bound: float) -> None:
        """Stop every process until `thaw`, or until we are gone."""
        ...

    async def thaw(self) -> None:
        """Idempotent. Raises: NoAnswer, Refused, also when it had gone on by itself."""
        ...


class BoxSocket:
    """A unix socket that a sandbox has made. The directory is the sandbox's to write to: a link
    planted there would lead the sidecar to any socket of the host."""

    def __init__(self, path: Path) -> None:
        """Raises: NoAnswer."""
        try:
            self._fd = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError as error:
            raise NoAnswer(f"{path.name} is not there: {error.strerror}") from error
        if not stat.S_ISSOCK(os.fstat(self._fd).st_mode):
            self.close()
            raise NoAnswer(f"{path.name} is no socket")

    @property
    def path(self) -> str:
        """Leads to this very socket, for as long as it is open here."""
        return f"/proc/self/fd/{self._fd}"

    def close(self) -> None:
        os.close(self._fd)


class BySocket:
    """A Link: one connection per call. A freeze lasts as long as its connection."""

    def __init__(self, control: BoxSocket) -> None:
        self._control = control
        self._frozen = contextlib.AsyncExitStack()

    async def freeze(self, bound: float) -> None:
        await self._frozen.enter_async_context(self.asking("freeze", bound=bound))

    async def thaw(self) -> None:
        await self._frozen.aclose()

    async def call(
        self, op: str, body: bytes = b"", *, bound: float | None = ANSWER_SECONDS, **fields: Any
    ) -> tuple[dict[str, Any], bytes]:
        async with self.asking(op, body, bound=bound, **fields) as answer:
            return answer

    @contextlib.asynccontextmanager
    async def asking(
        self, op: str, body: bytes = b"", *, bound: float | None = ANSWER_SECONDS, **fields: Any
    ) -> AsyncIterator[tuple[dict[str, Any], bytes]]:
        """The answer; its connection stays open for the time of the block."""
        request = {"op": op, "size": len(body), **fields}
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                reader, writer = await asyncio.open_unix_connection(
                    self._control.path, limit=LONGEST_LINE
                )
        except (OSError, TimeoutError) as error:
            raise NoAnswer(f"the sandbox does not answer: {error}") from error
        try:
            writer.write(json.dumps(request).encode() + b"\n" + body)
            try:
                async with asyncio.timeout(bound):
                    answer = await _answer(op, reader, writer)
            except TimeoutError as error:
                raise NoAnswer(f"no answer to {op} in {bound} s") from error
            except (OSError, ValueError, asyncio.IncompleteReadError) as error:
                raise NoAnswer(f"the sandbox broke off in {op}: {error}") from error
            except asyncio.CancelledError:
                await finish(_given_up(reader, writer), GIVE_UP_SECONDS)
                raise
            yield answer
        finally:
            writer.close()


async def _given_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Hang up, and wait until boxd has ended what it was doing."""
    with contextlib.suppress(OSError):
        writer.write_eof()
        while await reader.read(1 << 16):
            pass


async def _answer(
    op: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> tuple[dict[str, Any], bytes]:
    await writer.drain()
    head = parse_head(op, await reader.readline())
    return head, await reader.readexactly(head["size"])
