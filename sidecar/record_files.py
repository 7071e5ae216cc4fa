"""Small JSON files that tell the next process what this one was doing.

A record is replaced as a whole and is on disk when `write_record` returns, so that a crash or a
power cut leaves the old one or the new one. A record that cannot be read is set aside under
`.broken`: it must stop neither the service nor another session.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import secrets
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

log = logging.getLogger(__name__)

T = TypeVar("T")

BROKEN = ".broken"
TEMPORARY = ".new"
# Long enough for somebody to look at what broke.
KEEP_BROKEN_SECONDS = 7 * 24 * 3600
# A temporary file this old belongs to a process that died while writing it.
KEEP_TEMPORARY_SECONDS = 3600
KEPT = {f"*{BROKEN}": KEEP_BROKEN_SECONDS, f".*{TEMPORARY}": KEEP_TEMPORARY_SECONDS}


def write_record(path: Path, text: str) -> None:
    """Replace the record. A file that was there keeps its mode.

    Raises: OSError; then the record is as it was.
    """
    with replacing(path) as file:
        file.write(text.encode())


@contextlib.contextmanager
def replacing(path: Path, mode: int = 0o666) -> Iterator[BinaryIO]:
    """A file to write what takes the place of `path` when the block ends well; as `write_record`.
    `mode` is for a file that was not there.

    Raises: OSError.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}{TEMPORARY}")
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    try:
        with os.fdopen(fd, "wb") as file:
            with contextlib.suppress(FileNotFoundError):
                os.fchmod(fd, path.stat().st_mode & 0o777)
            yield file
            file.flush()
            os.fsync(fd)
        temporary.rename(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_directory(path.parent)


def sync_directory(directory: Path) -> None:
    """Make the names in a directory durable. Raises: OSError."""
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def read_record(path: Path, parse: Callable[[Any], T]) -> T | None:
    """The record as `parse` understands it; None if there is none, or it was set aside.

    Raises: OSError.
    """
    try:
        text = path.read_bytes()
    except FileNotFoundError:
        return None
    try:
        return parse(json.loads(text))
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        set_aside(path, f"{type(error).__name__}: {error}")
        return None


def set_aside(path: Path, why: str) -> Path:
    """Rename a record that cannot be used, so that nobody reads it again. Raises: OSError."""
    aside = path.with_name(path.name + BROKEN)
    log.error("cannot read the record %s, renamed it to %s: %s", path, aside.name, why[:500])
    with contextlib.suppress(FileNotFoundError):
        path.rename(aside)
        os.utime(aside)  # its time in here begins now
    return aside


def was_set_aside(path: Path) -> bool:
    """Whether a record was here that could not be read."""
    return path.with_name(path.name + BROKEN).exists()


def sweep_records(directory: Path) -> None:
    """Remove what was set aside long ago, and what is left of writers that died."""
    now = time.time()
    for pattern, seconds in KEPT.items():
        for path in directory.glob(pattern):
            with contextlib.suppress(OSError):
                if now - path.stat().st_mtime > seconds:
                    path.unlink()
