"""Reads an answer as it goes by: nothing is held up, and little is kept."""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping

from sidecar.gateway.metering.reading import Reader, Seen

# The last event of a long answer repeats all of it. What is longer than this is not read.
MAX_KEPT = 8 * 1024 * 1024
# How much a piece may grow when it is unpacked.
_MAX_UNPACKED = 16 * 1024 * 1024
_ZLIB_WINDOW = 32 + zlib.MAX_WBITS  # gzip or zlib, told apart by their header
_DATA = b"data:"
_DONE = b"[DONE]"
_STREAM = (b"data:", b"event:", b":")


class Tap:
    """One answer. `seen` is what it has said; `blind` when not all of it could be read, `plain`
    when it comes without an encoding."""

    def __init__(self, reader: Reader, headers: Mapping[str, str]) -> None:
        self._reader = reader
        self._streamed = headers.get("content-type", "").lower().startswith("text/event-stream")
        self._kept = bytearray()
        self._skipping = False
        encoding = headers.get("content-encoding", "identity").strip().lower() or "identity"
        packed = encoding in ("gzip", "x-gzip", "deflate")
        self._unpack = zlib.decompressobj(_ZLIB_WINDOW) if packed else None
        self._unreadable = not packed and encoding != "identity"
        self.blind = self._unreadable
        self.plain = encoding == "identity"
        self.seen = Seen()

    @property
    def streamed(self) -> bool:
        return self._streamed

    def feed(self, chunk: bytes) -> None:
        if self._unreadable:
            return
        plain = self._plain(chunk)
        if not self._streamed and not self._kept and plain.lstrip().startswith(_STREAM):
            self._streamed = True  # whatever its header says
        if self._streamed:
            self._lines(plain)
        elif len(self._kept) + len(plain) <= MAX_KEPT:
            self._kept += plain
        else:
            self.blind = True

    def end(self) -> None:
        """The answer has ended; one that is not a stream is read now."""
        if self._streamed:
            self._lines(b"\n")
        elif not self.blind:  # half of a JSON object says nothing
            self._read(bytes(self._kept), whole=True)
        self._kept.clear()

    def _plain(self, chunk: bytes) -> bytes:
        if self._unpack is None:
            return chunk
        try:
            plain = self._unpack.decompress(chunk, _MAX_UNPACKED)
        except zlib.error:
            plain = None
        if plain is None or self._unpack.unconsumed_tail:
            self._unreadable = self.blind = True
        return plain or b""

    def _lines(self, plain: bytes) -> None:
        *lines, rest = plain.split(b"\n")
        for line in lines:
            if self._skipping:
                self._skipping = False
            else:
                self._line(bytes(self._kept) + line)
            self._kept.clear()
        if self._skipping:
            return
        self._kept += rest
        if len(self._kept) > MAX_KEPT:
            self._kept.clear()
            self._skipping = self.blind = True

    def _line(self, line: bytes) -> None:
        if not line.startswith(_DATA):
            return
        data = line[len(_DATA) :].strip()
        if data == _DONE:
            self.seen.ended = True
        elif any(word in data for word in self._reader.words):
            self._read(data, whole=False)
        else:
            self.seen.pieces += 1

    def _read(self, data: bytes, *, whole: bool) -> None:
        try:
            found = json.loads(data)
        except (ValueError, RecursionError):
            return
        if isinstance(found, dict):
            (self._reader.whole if whole else self._reader.event)(self.seen, found)
