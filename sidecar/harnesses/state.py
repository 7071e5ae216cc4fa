"""A harness's own record of the conversation: which files it is, and how a torn one is mended.

| harness | kept | stays in the box | never leaves it |
|---|---|---|---|
| claude | `.claude/projects` | settings, caches, shell snapshots | `.claude/.credentials.json` |
| codex | `.codex/sessions` | databases and skills, made anew at each start | `.codex/auth.json` |
| opencode | `.local/share/opencode` | its log, cloned repositories, binaries | its `auth.json` |
| pi | `.pi/agent/sessions` | its index with absolute paths | `.pi/agent/auth.json` |
"""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

# What a tool that never answered is said to have answered.
INTERRUPTED = (
    "[interrupted: the harness ended before this tool returned; what it did may be incomplete]"
)

Record = dict[str, Any]
MOST_FILES = 100_000
_TORN = object()  # a line that is no JSON


class StateBroken(Exception):
    """The state cannot be mended."""


@dataclass(frozen=True)
class StatePaths:
    """Directories under HOME that are carried, and what in them is not."""

    kept: tuple[str, ...]
    left: tuple[str, ...] = ()


def read_tar(data: bytes) -> dict[str, bytes]:
    """The regular files of a tar, which a sandbox may have packed. Raises: StateBroken."""
    files: dict[str, bytes] = {}
    size = 0
    try:
        # `r:`, for one that is not compressed: any other could be of any size
        with tarfile.open(fileobj=io.BytesIO(data), mode="r:") as tar:
            for member in tar:
                size += member.size if member.isreg() else 0
                if size > len(data) or len(files) > MOST_FILES:  # sparse, or full of empty names
                    raise StateBroken(f"the state has more than {len(data)} bytes when unpacked")
                content = tar.extractfile(member) if member.isreg() else None
                if content is not None:
                    files[member.name] = content.read()
    except (tarfile.TarError, EOFError, ValueError) as error:
        raise StateBroken(f"the stored state is not readable: {error}") from error
    return files


def write_tar(files: Mapping[str, bytes]) -> bytes:
    into = io.BytesIO()
    with tarfile.open(fileobj=into, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for path, data in sorted(files.items()):
            info = tarfile.TarInfo(path)
            info.size, info.mode = len(data), 0o600
            tar.addfile(info, io.BytesIO(data))
    return into.getvalue()


def mend_jsonl(
    files: dict[str, bytes], closing: Callable[[Sequence[Record]], Iterable[Record]]
) -> list[str]:
    """Cut the torn end of every JSONL file and close its dangling tool calls, in place. What was
    mended once has nothing left to mend.

    `closing` gives the records to add behind those that are there. Returns what was done.
    """
    notes = []
    for path, data in files.items():
        if not path.endswith(".jsonl"):
            continue
        lines = data.splitlines(keepends=True)
        kept = len(lines)
        while kept and not _is_whole(lines[kept - 1]):
            kept -= 1
        records = [record for line in lines[:kept] if (record := _record(line)) is not None]
        added = [json.dumps(record).encode() + b"\n" for record in closing(records)]
        if kept != len(lines):
            torn = sum(map(len, lines[kept:]))
            notes.append(f"cut a torn last line of {torn} bytes")
        if added:
            notes.append(f"closed {len(added)} tool calls that never returned")
        if kept != len(lines) or added:
            files[path] = b"".join([*lines[:kept], *added])
    return notes


def _is_whole(line: bytes) -> bool:
    return line.endswith(b"\n") and _parse(line) is not _TORN


def _record(line: bytes) -> Record | None:
    found = _parse(line)
    return found if isinstance(found, dict) else None


def _parse(line: bytes) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return _TORN
