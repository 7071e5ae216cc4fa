"""Changes a mounted workspace for a user: files put in, folders made, names moved and deleted. In a
process of its own, which can be killed when the file system hangs.

A script of the standard library only: `python -I -S editor.py MOUNTPOINT`. One JSON request on
stdin, one JSON answer on stdout. The tree belongs to the agent and may change under our hands, so
every step goes by a directory's descriptor and no link is ever followed.
"""

from __future__ import annotations

import base64
import contextlib
import errno
import json
import os
import stat
import sys
from collections.abc import Iterator
from typing import Any

DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
# A file on its way in has a name of its own until it is whole.
COMING = ".holdfast-upload-"
# What the agent puts into a directory while it is being deleted is deleted too, so often.
MOST_ROUNDS = 5


class Editor:
    def __init__(self, root: str) -> None:
        self.root = root

    def begin(self, path: str, *, replace: bool) -> dict[str, Any]:
        """An empty file beside where `path` will be; the folders above it are made."""
        with self.parent(path, make=True) as (parent, name):
            self._may_be_put(parent, name, replace)
            coming = COMING + os.urandom(8).hex()
            os.close(os.open(coming, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644, dir_fd=parent))
            _own(parent, coming)
        return {"name": coming}

    def piece(self, path: str, name: str, *, offset: int, data: str) -> dict[str, Any]:
        """A part of what is coming; the same when written twice."""
        with self.parent(path) as (parent, _):
            fd = os.open(_coming(name), os.O_WRONLY | os.O_NOFOLLOW, dir_fd=parent)
            try:
                content = memoryview(base64.b64decode(data))
                while content:
                    written = os.pwrite(fd, content, offset)
                    content, offset = content[written:], offset + written
            finally:
                os.close(fd)
        return {}

    def finish(self, path: str, name: str, *, replace: bool) -> dict[str, Any]:
        """Let what has come take its place, and do not come back before it is in the store."""
        with self.parent(path) as (parent, last):
            self._may_be_put(parent, last, replace)
            fd = os.open(_coming(name), os.O_RDWR | os.O_NOFOLLOW, dir_fd=parent)
            try:
                os.fsync(fd)
                os.rename(name, last, src_dir_fd=parent, dst_dir_fd=parent)
                os.fsync(fd)
            finally:
                os.close(fd)
            return _told(parent, last)

    def abandon(self, path: str, name: str) -> dict[str, Any]:
        with contextlib.suppress(FileNotFoundError), self.parent(path) as (parent, _):
            os.unlink(_coming(name), dir_fd=parent)
        return {}

    def mkdir(self, path: str) -> dict[str, Any]:
        with self.parent(path, make=True) as (parent, name):
            os.mkdir(name, 0o755, dir_fd=parent)
            _own(parent, name)
            return _told(parent, name)

    def move(self, source: str, target: str) -> dict[str, Any]:
        """Give it another name, where there is nothing yet."""
        if f"{target}/".startswith(f"{source}/"):
            raise OSError(errno.EINVAL, "it cannot be moved into itself")
        with self.parent(source) as (old_parent, old_name):
            os.stat(old_name, dir_fd=old_parent, follow_symlinks=False)
            with self.parent(target, make=True) as (parent, name):
                if _info(parent, name) is not None:
                    raise FileExistsError(errno.EEXIST, "there is something of that name")
                os.rename(old_name, name, src_dir_fd=old_parent, dst_dir_fd=parent)
                return _told(parent, name)

    def delete(self, path: str) -> dict[str, Any]:
        """The file or link, or the directory with all that is in it."""
        done = {"files": 0, "directories": 0}
        with self.parent(path) as (parent, name):
            self._delete(parent, name, done)
        return done

    def _delete(self, parent: int, name: str, done: dict[str, int]) -> None:
        info = os.stat(name, dir_fd=parent, follow_symlinks=False)
        if not stat.S_ISDIR(info.st_mode):
            os.unlink(name, dir_fd=parent)
            done["files"] += 1
            return
        for left in reversed(range(MOST_ROUNDS)):
            fd = os.open(name, DIRECTORY, dir_fd=parent)
            try:
                with os.scandir(fd) as found:
                    names = [item.name for item in found]
                for each in names:
                    with contextlib.suppress(FileNotFoundError):
                        self._delete(fd, each, done)
            finally:
                os.close(fd)
            try:
                os.rmdir(name, dir_fd=parent)
            except OSError as error:
                if error.errno != errno.ENOTEMPTY or not left:
                    raise
            else:
                done["directories"] += 1
                return

    def _may_be_put(self, parent: int, name: str, replace: bool) -> None:
        info = _info(parent, name)
        if info is not None and not (replace and not stat.S_ISDIR(info.st_mode)):
            raise FileExistsError(errno.EEXIST, "there is something of that name")

    @contextlib.contextmanager
    def parent(self, path: str, *, make: bool = False) -> Iterator[tuple[int, str]]:
        """A descriptor of the directory that a path is in, and the last name of the path."""
        steps = path.split("/")
        if any(step in ("", ".", "..") or "\0" in step for step in steps):
            raise OSError(errno.EINVAL, "not a plain path")
        fd = os.open(self.root, DIRECTORY)
        try:
            for step in steps[:-1]:
                if make:
                    self._make(fd, step)
                deeper = os.open(step, DIRECTORY, dir_fd=fd)
                os.close(fd)
                fd = deeper
            yield fd, steps[-1]
        finally:
            os.close(fd)

    def _make(self, parent: int, name: str) -> None:
        with contextlib.suppress(FileExistsError):
            os.mkdir(name, 0o755, dir_fd=parent)
            _own(parent, name)


def _coming(name: str) -> str:
    if "/" in name or not name.startswith(COMING):
        raise OSError(errno.EINVAL, "not a file on its way in")
    return name


def _own(parent: int, name: str) -> None:
    """It is the sandbox's user's, as all around it is."""
    above = os.fstat(parent)
    with contextlib.suppress(PermissionError):
        os.chown(name, above.st_uid, above.st_gid, dir_fd=parent, follow_symlinks=False)


def _info(parent: int, name: str) -> os.stat_result | None:
    try:
        return os.stat(name, dir_fd=parent, follow_symlinks=False)
    except FileNotFoundError:
        return None


def _told(parent: int, name: str) -> dict[str, Any]:
    info = os.stat(name, dir_fd=parent, follow_symlinks=False)
    kind = "directory" if stat.S_ISDIR(info.st_mode) else "file"
    if stat.S_ISLNK(info.st_mode):
        kind = "symlink"
    size = info.st_size if kind == "file" else None
    return {"kind": kind, "size": size, "mtime": info.st_mtime}


def main() -> None:
    request = json.load(sys.stdin)
    op = request.pop("op")
    try:
        answer = {"ok": getattr(Editor(sys.argv[1]), op)(**request)}
    except OSError as error:
        answer = {"errno": error.errno, "error": f"{error.strerror}: {op}"}
    json.dump(answer, sys.stdout)


if __name__ == "__main__":
    main()
