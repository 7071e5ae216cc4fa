"""A box's HOME, read from the host: while the box is frozen nothing in it can answer.

Links are neither followed nor taken: what is in there is the agent's, and they could lead anywhere.
"""

from __future__ import annotations

import io
import os
import stat
import tarfile
from collections.abc import Iterator, Sequence
from pathlib import Path


class HomeTooLarge(Exception):
    """What is to be packed is more than anyone should carry."""


def pack(home: Path, kept: Sequence[str], left: Sequence[str], most_bytes: int) -> bytes:
    """A tar of the directories `kept`, without what stands under a path of `left`.

    Two packs of the same files are the same bytes. Raises: HomeTooLarge.
    """
    into = io.BytesIO()
    with tarfile.open(fileobj=into, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for path, data in _files(home, kept):
            if any(path == skipped or path.startswith(f"{skipped}/") for skipped in left):
                continue
            if into.tell() + len(data) > most_bytes:
                raise HomeTooLarge(f"more than {most_bytes} bytes under {', '.join(kept)}")
            info = tarfile.TarInfo(path)
            info.size, info.mode = len(data), 0o600
            tar.addfile(info, io.BytesIO(data))
    return into.getvalue()


def _files(home: Path, kept: Sequence[str]) -> Iterator[tuple[str, bytes]]:
    top = os.open(home, os.O_RDONLY | os.O_DIRECTORY)
    try:
        for path in kept:
            fd = _directory(top, path)
            if fd is not None:
                yield from _below(fd, path)
    finally:
        os.close(top)


def _directory(top: int, path: str) -> int | None:
    """Opened step by step; None if it is not there, or a link or a way up is on the way."""
    steps = path.split("/")
    if ".." in steps:
        return None
    fd = os.dup(top)
    for step in steps:
        try:
            deeper = os.open(step, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=fd)
        except OSError:
            return None
        finally:
            os.close(fd)
        fd = deeper
    return fd


def _below(directory: int, path: str) -> Iterator[tuple[str, bytes]]:
    """Every regular file under an open directory, which is closed at the end."""
    try:
        with os.scandir(directory) as found:
            names = sorted(item.name for item in found)
        for name in names:
            inner = f"{path}/{name}"
            try:
                fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=directory)
            except OSError:  # a link, a socket, or gone by now
                continue
            mode = os.fstat(fd).st_mode
            if stat.S_ISDIR(mode):
                yield from _below(fd, inner)
                continue
            with os.fdopen(fd, "rb") as file:
                if stat.S_ISREG(mode):
                    yield inner, file.read()
    finally:
        os.close(directory)
