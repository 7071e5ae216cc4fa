"""Reading the log files of a stack, running or not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from stack.embedded.logs import Line, parse_line

# Enough for any `-n`: older lines of a part that logs a lot are in its rotated files.
_TAIL_BYTES = 4 * 1024 * 1024

# where to begin in a file of this size that was not read before
_Start = Callable[[int], int]


@dataclass(frozen=True)
class _Place:
    """How far a file was read; the inode tells when it was rotated away."""

    inode: int
    offset: int


class LogFiles:
    """The logs of one part, or of all parts together in the order of time."""

    def __init__(self, directory: Path, part: str | None) -> None:
        self._directory = directory
        self._pattern = f"{part}.log" if part else "*.log"
        self._places: dict[Path, _Place] = {}

    def last(self, count: int) -> list[Line]:
        """The newest `count` lines that are there."""
        lines = self._read_all(lambda size: max(0, size - _TAIL_BYTES))
        return lines[-count:] if count else []

    def new(self) -> list[Line]:
        """What was written since the last call."""
        return self._read_all(lambda _size: 0)

    def _read_all(self, start: _Start) -> list[Line]:
        lines: list[Line] = []
        for path in sorted(self._directory.glob(self._pattern)):
            lines += self._read(path, start)
        return sorted(lines, key=lambda line: line.at)

    def _read(self, path: Path, start: _Start) -> list[Line]:
        place = self._places.get(path)
        lines: list[Line] = []
        try:
            with path.open("rb") as file:
                found = path.stat()
                if place is not None and place.inode != found.st_ino:
                    lines += self._rest_of_rotated(path, place)
                    place = _Place(found.st_ino, 0)
                place = place or _Place(found.st_ino, start(found.st_size))
                file.seek(place.offset)
                data = file.read()
        except FileNotFoundError:
            return lines
        whole = data[: data.rfind(b"\n") + 1]
        self._places[path] = _Place(place.inode, place.offset + len(whole))
        return lines + _parse(path.stem, whole)

    def _rest_of_rotated(self, path: Path, place: _Place) -> list[Line]:
        """The end of a file that was rotated before it was read to its end."""
        rotated = path.with_name(f"{path.name}.1")
        try:
            with rotated.open("rb") as file:
                if rotated.stat().st_ino != place.inode:
                    return []
                file.seek(place.offset)
                return _parse(path.stem, file.read())
        except FileNotFoundError:
            return []


def _parse(part: str, data: bytes) -> list[Line]:
    texts = data.decode("utf-8", "replace").split("\n")
    found = (parse_line(part, text) for text in texts)
    return [line for line in found if line is not None]
