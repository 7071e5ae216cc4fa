"""Mends a mounted workspace from the host: metadata that the file system forgot, locks that a
killed process left. In a process of its own, which can be killed when the file system hangs.

A script of the standard library only: `python -I -S mender.py MOUNTPOINT`. One JSON request on
stdin, one JSON answer on stdout. The tree belongs to the agent and may change under our hands, so
every step goes by a directory's descriptor and no link is ever followed.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import ctypes
import errno
import json
import os
import stat
import sys
from collections import Counter
from collections.abc import Iterator
from typing import Any

WORKERS = 16
# One task of the pool: large enough to pay for opening its directory, small enough to spread.
FILES_AT_ONCE = 32
MOST_PROBLEMS = 100
MOST_LEVELS = 64
# setuid and setgid bits are the agent's to set, never ours to give back.
PERMISSIONS = 0o777
DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
AT_EMPTY_PATH, AT_STATX_FORCE_SYNC, STATX_BASIC_STATS = 0x1000, 0x2000, 0x7FF
STATX_BYTES = 256

Wanted = dict[str, Any]

libc = ctypes.CDLL(None, use_errno=True)


class Mender:
    def __init__(self, root: str) -> None:
        self.root = root
        self.problems: dict[str, str] = {}

    def look(self) -> dict[str, Any]:
        """Ask the daemon itself, past every cache of the kernel, for something it has in memory."""
        fd = os.open(self.root, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            _refresh(fd)
        finally:
            os.close(fd)
        return {}

    def restore(self, entries: list[Wanted], *, ask: bool, grain_ns: int) -> dict[str, Any]:
        """Give every entry that is still there its mode, mtime and target; make the directories
        that no file keeps. With `ask`, the daemon is made to fetch each file's own metadata first:
        it shows none before. `grain_ns` is the step in which the file system keeps times."""
        restoring = _Restoring(self, {entry["path"]: entry for entry in entries}, ask, grain_ns)
        with concurrent.futures.ThreadPoolExecutor(WORKERS) as pool:
            restoring.run(pool)
        return {**restoring.done, "problems": self.problems}

    def sweep_locks(self) -> dict[str, Any]:
        """Remove `*.lock` below every `.git`; the paths that are gone."""
        removed: list[str] = []
        with concurrent.futures.ThreadPoolExecutor(WORKERS) as pool:
            for path, names in self.walk(pool, skip="node_modules"):
                if ".git" in path.split("/"):
                    removed += self._unlink(path, [n for n in names if n.endswith(".lock")])
        return {"paths": sorted(map(_printable, removed))}

    def _unlink(self, path: str, names: list[str]) -> list[str]:
        removed = []
        for name in names:
            with self.reporting(_join(path, name)), self.directory(path) as parent:
                os.unlink(name, dir_fd=parent)
                removed.append(_join(path, name))
        return removed

    def walk(
        self, pool: concurrent.futures.Executor, skip: str = ""
    ) -> Iterator[tuple[str, list[str]]]:
        """Each directory with the names in it that are no directories, level by level."""
        level = [""]
        for _ in range(MOST_LEVELS):
            deeper: list[str] = []
            listed = pool.map(self._listing, level)
            for path, (directories, names) in zip(level, listed, strict=True):
                yield path, names
                deeper += [_join(path, name) for name in directories if name != skip]
            level = deeper

    def _listing(self, path: str) -> tuple[list[str], list[str]]:
        directories: list[str] = []
        names: list[str] = []
        with self.reporting(path), self.directory(path) as fd, os.scandir(fd) as found:
            for item in found:
                (directories if item.is_dir(follow_symlinks=False) else names).append(item.name)
        return directories, names

    @contextlib.contextmanager
    def directory(self, path: str) -> Iterator[int]:
        """A descriptor of a directory below the top, opened step by step."""
        fd = os.open(self.root, DIRECTORY)
        try:
            for step in path.split("/") if path else ():
                if step in ("", ".", ".."):
                    raise OSError(errno.EINVAL, "not a plain path")
                deeper = os.open(step, DIRECTORY, dir_fd=fd)
                os.close(fd)
                fd = deeper
            yield fd
        finally:
            os.close(fd)

    @contextlib.contextmanager
    def reporting(self, path: str) -> Iterator[None]:
        """What fails for one path is told and does not end the rest, unless the mount is dead."""
        try:
            yield
        except (FileNotFoundError, FileExistsError):
            pass  # it went away, or something else is there by now
        except OSError as error:
            if error.errno in (errno.ENOTCONN, errno.ECONNABORTED):
                raise
            if len(self.problems) < MOST_PROBLEMS:
                self.problems[_printable(path)] = error.strerror or str(error)


class _Restoring:
    def __init__(self, mender: Mender, wanted: dict[str, Wanted], ask: bool, grain_ns: int) -> None:
        self._mender = mender
        self._wanted = wanted
        self._ask = ask
        self._grain_ns = grain_ns
        self.done: Counter[str] = Counter(symlinks=0, modes=0, mtimes=0, directories=0)

    def run(self, pool: concurrent.futures.Executor) -> None:
        directories = []
        tasks = []
        for path, names in self._mender.walk(pool):
            directories.append(path)
            tasks += [
                pool.submit(self._files, path, names[start : start + FILES_AT_ONCE])
                for start in range(0, len(names), FILES_AT_ONCE)
            ]
        for task in tasks:
            self.done.update(task.result())
        directories += self._make_directories(set(directories))
        # Deepest first: what is made in a directory changes its time.
        by_depth: dict[int, list[str]] = {}
        for path in filter(None, directories):
            by_depth.setdefault(path.count("/"), []).append(path)
        for depth in sorted(by_depth, reverse=True):
            for done in pool.map(self._directory, by_depth[depth]):
                self.done.update(done)

    def _files(self, path: str, names: list[str]) -> Counter[str]:
        done: Counter[str] = Counter()
        with self._mender.reporting(path), self._mender.directory(path) as parent:
            for name in names:
                with self._mender.reporting(_join(path, name)):
                    self._one(parent, name, self._wanted.get(_join(path, name)), done)
        return done

    def _directory(self, path: str) -> Counter[str]:
        done: Counter[str] = Counter()
        above, _, name = path.rpartition("/")
        with self._mender.reporting(path), self._mender.directory(above) as parent:
            self._one(parent, name, self._wanted.get(path), done)
        return done

    def _one(self, parent: int, name: str, want: Wanted | None, done: Counter[str]) -> None:
        info = os.stat(name, dir_fd=parent, follow_symlinks=False)
        if want is not None and self._as_wanted(parent, name, info, want):
            return
        if self._ask and not stat.S_ISLNK(info.st_mode):
            info = _asked(parent, name)
        if want is None:
            return
        if want["kind"] == "symlink" and stat.S_ISREG(info.st_mode) and info.st_size == 0:
            _link(parent, name, want["target"])
            info = os.stat(name, dir_fd=parent, follow_symlinks=False)
            done["symlinks"] += 1
        if not _same_kind(parent, name, info, want):
            return  # it is something else by now, and stays what it is
        if not stat.S_ISLNK(info.st_mode) and (info.st_mode ^ want["mode"]) & PERMISSIONS:
            _set_mode(parent, name, info, want["mode"] & PERMISSIONS)
            done["modes"] += 1
        if not self._same_time(info, want):
            times = (info.st_atime_ns, want["mtime_ns"])
            os.utime(name, ns=times, dir_fd=parent, follow_symlinks=False)
            done["mtimes"] += 1

    def _as_wanted(self, parent: int, name: str, info: os.stat_result, want: Wanted) -> bool:
        if not _same_kind(parent, name, info, want) or not self._same_time(info, want):
            return False
        return stat.S_ISLNK(info.st_mode) or not (info.st_mode ^ want["mode"]) & PERMISSIONS

    def _same_time(self, info: os.stat_result, want: Wanted) -> bool:
        return info.st_mtime_ns // self._grain_ns == int(want["mtime_ns"]) // self._grain_ns

    def _make_directories(self, present: set[str]) -> list[str]:
        """The store keeps a directory by what is in it. One that had files and is missing was
        deleted; one that had none was forgotten, unless all around it was deleted too."""
        kept = {
            above
            for entry in self._wanted.values()
            if entry["kind"] != "directory"
            for above in _above(entry["path"])
        }
        made = []
        for path in sorted(self._wanted):
            if self._wanted[path]["kind"] != "directory" or path in present or path in kept:
                continue
            above, _, name = path.rpartition("/")
            if above not in present:
                continue
            with self._mender.reporting(path), self._mender.directory(above) as parent:
                os.mkdir(name, dir_fd=parent)
                own = os.fstat(parent)
                with contextlib.suppress(PermissionError):
                    os.chown(name, own.st_uid, own.st_gid, dir_fd=parent, follow_symlinks=False)
                present.add(path)
                made.append(path)
        self.done["directories"] += len(made)
        return made


def _asked(parent: int, name: str) -> os.stat_result:
    """The entry as it is once the daemon has fetched its metadata, which any xattr makes it do."""
    fd = os.open(name, os.O_PATH | os.O_NOFOLLOW, dir_fd=parent)
    try:
        with contextlib.suppress(OSError):
            os.getxattr(f"/proc/self/fd/{fd}", "user.holdfast")
        try:
            _refresh(fd)
        except OSError as error:
            # The kernel knew it as a file, and it is a link: it forgets the inode, once.
            if error.errno != errno.EIO:
                raise
    finally:
        os.close(fd)
    return os.stat(name, dir_fd=parent, follow_symlinks=False)


def _refresh(fd: int) -> None:
    """Make the kernel ask the daemon for the attributes, whatever it has cached."""
    answer = ctypes.create_string_buffer(STATX_BYTES)
    flags = AT_EMPTY_PATH | AT_STATX_FORCE_SYNC
    if libc.statx(fd, b"", flags, STATX_BASIC_STATS, answer) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def _link(parent: int, name: str, target: str) -> None:
    """Put a link where an empty file is, so that at each moment one of the two is there."""
    own = os.stat(name, dir_fd=parent, follow_symlinks=False)
    new = f".holdfast-link-{os.getpid()}-{os.urandom(4).hex()}"
    os.symlink(target, new, dir_fd=parent)
    try:
        with contextlib.suppress(PermissionError):
            os.chown(new, own.st_uid, own.st_gid, dir_fd=parent, follow_symlinks=False)
        os.rename(new, name, src_dir_fd=parent, dst_dir_fd=parent)
    except OSError:
        os.unlink(new, dir_fd=parent)
        raise


def _set_mode(parent: int, name: str, info: os.stat_result, mode: int) -> None:
    fd = os.open(name, os.O_PATH | os.O_NOFOLLOW, dir_fd=parent)
    try:
        if os.fstat(fd).st_ino == info.st_ino:
            os.chmod(f"/proc/self/fd/{fd}", mode)  # noqa: PTH101
    finally:
        os.close(fd)


def _same_kind(parent: int, name: str, info: os.stat_result, want: Wanted) -> bool:
    if stat.S_ISLNK(info.st_mode):
        target: str = want["target"]
        return want["kind"] == "symlink" and target == os.readlink(name, dir_fd=parent)
    if stat.S_ISDIR(info.st_mode):
        return bool(want["kind"] == "directory")
    return stat.S_ISREG(info.st_mode) and want["kind"] == "file" and info.st_size == want["size"]


def _above(path: str) -> Iterator[str]:
    while "/" in path:
        path = path.rpartition("/")[0]
        yield path


def _join(path: str, name: str) -> str:
    return f"{path}/{name}" if path else name


def _printable(path: str) -> str:
    return path.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def main() -> None:
    request = json.load(sys.stdin)
    op = request.pop("op")
    try:
        answer = {"ok": getattr(Mender(sys.argv[1]), op)(**request)}
    except OSError as error:
        answer = {"errno": error.errno, "error": f"{error.strerror}: {op}"}
    json.dump(answer, sys.stdout)


if __name__ == "__main__":
    main()
