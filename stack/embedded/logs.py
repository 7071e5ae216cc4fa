"""What the parts print: to a file each, and to the terminal with a prefix."""

from __future__ import annotations

import asyncio
import logging
import os
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from logging.handlers import RotatingFileHandler
from pathlib import Path

from contracts.logs import LogFormat, as_json

# A part that logs in a loop fills at most this much, four times.
MAX_FILE_BYTES = 8 * 1024 * 1024
KEPT_FILES = 3
# Longer lines are cut into pieces: a line without an end must not grow in memory.
MAX_LINE_BYTES = 32 * 1024
_TAIL_LINES = 12

# The name under which the supervisor itself writes.
STACK = "stack"


@dataclass(frozen=True)
class Line:
    part: str
    at: datetime
    text: str


Sink = Callable[[Line], None]


class Logs:
    """The log files of one stack. `sink` gets every line too, for the terminal."""

    def __init__(self, directory: Path, sink: Sink | None = None, form: LogFormat = "text") -> None:
        self._directory = directory
        self._form = form
        self._sink = sink
        self._handlers: dict[str, RotatingFileHandler] = {}
        self._tails: dict[str, deque[str]] = {}

    def write(self, part: str, text: str) -> None:
        text = text.rstrip("\r\n")
        if part == STACK and self._form == "json":
            text = as_json(STACK, "info", text)
        line = Line(part, datetime.now(UTC), text)
        self._tails.setdefault(part, deque(maxlen=_TAIL_LINES)).append(line.text)
        self._handler(part).emit(_record(part, format_line(line)))
        try:
            if self._sink is not None:
                self._sink(line)
        # whoever watched has left, which rich reports as SystemExit: the stack goes on
        except (OSError, SystemExit):
            self._sink = None

    def tail(self, part: str) -> list[str]:
        """The last lines that this process has seen of a part."""
        return list(self._tails.get(part, ()))

    def close(self) -> None:
        for handler in self._handlers.values():
            handler.close()
        self._handlers.clear()

    def _handler(self, part: str) -> RotatingFileHandler:
        if part not in self._handlers:
            self._handlers[part] = RotatingFileHandler(
                self._directory / f"{part}.log",
                maxBytes=MAX_FILE_BYTES,
                backupCount=KEPT_FILES,
                encoding="utf-8",
                errors="backslashreplace",
            )
        return self._handlers[part]


def format_line(line: Line) -> str:
    return f"{line.at.isoformat(timespec='milliseconds')} {line.text}"


def parse_line(part: str, raw: str) -> Line | None:
    """A line of a log file, or None for one that we did not write."""
    stamp, _, text = raw.rstrip("\n").partition(" ")
    try:
        return Line(part, datetime.fromisoformat(stamp), text)
    except ValueError:
        return None


class OutputPipe:
    """A pipe that a child process writes to.

    It is ours and not asyncio's, whose Process.wait() may wait for every grandchild that
    holds the pipe open.
    """

    def __init__(self, reader: asyncio.StreamReader, transport: asyncio.ReadTransport, write: int):
        self._reader = reader
        self._transport = transport
        self.write_end = write

    @classmethod
    async def open(cls) -> OutputPipe:
        read, write = os.pipe()
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader()
        transport, _ = await loop.connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(read, "rb", buffering=0)
        )
        return cls(reader, transport, write)

    def child_has_it(self) -> None:
        """Close our copy of the write end, so that the end of the child is the end of the pipe."""
        with suppress(OSError):
            os.close(self.write_end)

    def close(self) -> None:
        self._transport.close()

    async def pump(self, write: Callable[[str], None]) -> None:
        """Hand every line to `write` until the pipe ends."""
        pending = b""
        while chunk := await self._reader.read(MAX_LINE_BYTES):
            *lines, pending = (pending + chunk).split(b"\n")
            if len(pending) >= MAX_LINE_BYTES:
                lines, pending = [*lines, pending], b""
            for line in lines:
                write(line.decode("utf-8", "backslashreplace"))
        if pending:
            write(pending.decode("utf-8", "backslashreplace"))


def _record(part: str, text: str) -> logging.LogRecord:
    return logging.LogRecord(part, logging.INFO, "", 0, text, None, None)
