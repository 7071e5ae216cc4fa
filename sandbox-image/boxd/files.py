"""Files under HOME and elsewhere, for the sidecar."""

from __future__ import annotations

import contextlib
import io
import os
import stat
import tarfile
from collections.abc import Iterator
from pathlib import Path

from asked import Refused

HOME = Path("/home/agent")
GONE = (FileNotFoundError, ProcessLookupError, PermissionError)


def write(path: Path, data: bytes, mode: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(f"{path.name}.holdfast-new")
    with contextlib.suppress(FileNotFoundError):
        new.unlink()
    fd = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(fd, "wb") as file:
        file.write(data)
        os.fchmod(file.fileno(), mode)
    new.rename(path)


def pack(kept: list[str], left: list[str], most_bytes: int) -> bytes:
    """A tar of directories under HOME; links are neither followed nor taken. Two packs of the
    same files are the same bytes."""
    into = io.BytesIO()
    with tarfile.open(fileobj=into, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for path in (path for top in kept for path in _files_below(HOME / top)):
            name = str(path.relative_to(HOME))
            if any(name == skipped or name.startswith(f"{skipped}/") for skipped in left):
                continue
            try:
                data = path.read_bytes()
            except GONE:
                continue
            if into.tell() + len(data) > most_bytes:
                raise Refused(f"more than {most_bytes} bytes under {', '.join(kept)}", "large")
            info = tarfile.TarInfo(name)
            info.size, info.mode = len(data), 0o600
            tar.addfile(info, io.BytesIO(data))
    return into.getvalue()


def _files_below(directory: Path) -> Iterator[Path]:
    with contextlib.suppress(*GONE, NotADirectoryError):
        for item in sorted(directory.iterdir()):
            mode = item.lstat().st_mode
            if stat.S_ISDIR(mode):
                yield from _files_below(item)
            elif stat.S_ISREG(mode):
                yield item


def unpack(tar: bytes) -> None:
    with tarfile.open(fileobj=io.BytesIO(tar)) as found:
        if hasattr(tarfile, "data_filter"):
            found.extractall(HOME, filter="data")
        else:  # Python before 3.11.4; what it could reach is the sandbox's own all the same
            found.extractall(HOME)  # noqa: S202
