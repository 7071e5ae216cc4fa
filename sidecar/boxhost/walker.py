"""Touches a mounted workspace from the host, in a process of its own that can be killed when the
file system hangs (a thread could not).

A script of the standard library only: `python -I -S walker.py MOUNTPOINT`. Each request is one JSON
line on stdin; each answer is a line with its length and then that many bytes of JSON. The tree, and
on a sandbox's own disk its top too, belongs to the agent and may change under our hands: every step
goes by a directory's descriptor, and no link is ever followed.
"""

from __future__ import annotations

import base64
import concurrent.futures
import contextlib
import errno
import hashlib
import heapq
import json
import os
import stat
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

CHUNK = 1 << 20
WORKERS = 4  # more of them only get into each other's way: 8 took three times as long
POKE_SECONDS = 0.05
# So many names are scanned in the time that one of them is asked for.
SCANNED_PER_STAT = 8
# A file may be written to twice in one tick of the clock that its times are taken from: until it
# is older than this, having been read says nothing for the next look. Some mounts keep seconds.
YOUNG_NS = 1_000_000_000
DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
# On the way to something: the file system is not asked to open it.
STEP = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW
# A key of the store has 1,024 bytes; each level also holds a descriptor while it is walked.
MOST_LEVELS = 400
# What a directory that was there a moment ago may answer, once the agent has changed it.
CHANGED = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)


# What tells that a file is as it was: mode, size, mtime, ctime and inode. Whoever sets the mtime
# back cannot set the ctime.
Mark = tuple[int, int, int, int, int]


def mark_of(info: os.stat_result) -> Mark:
    return info.st_mode, info.st_size, info.st_mtime_ns, info.st_ctime_ns, info.st_ino


class Known:
    """A name as it was seen. `settled`: its bytes are those that `plain` has the hash of."""

    __slots__ = ("mark", "plain", "settled")

    def __init__(self, mark: Mark, plain: dict[str, Any]) -> None:
        self.mark = mark
        self.plain = plain
        self.settled = False


class Walker:
    def __init__(
        self,
        root: str,
        young_ns: int = YOUNG_NS,
        mark: Callable[[os.stat_result], Mark] = mark_of,
    ) -> None:
        self.root = os.fsencode(root)
        self.mark = mark
        self.young_ns = young_ns
        self.token = ""
        self.known: dict[bytes, Known] = {}  # what the last `settle` told, as far as it was settled
        self.told: dict[bytes, Known] = {}  # what the last `settle` told
        self.full = True
        self.found: dict[bytes, Known] = {}  # what the last `scan` saw
        self.pending: list[tuple[bytes, Known]] = []
        self.odd: dict[str, str] = {}  # what no engine can keep, and why
        self.scanned = False

    @contextlib.contextmanager
    def top(self) -> Iterator[int]:
        fd = os.open(self.root, DIRECTORY)
        try:
            yield fd
        finally:
            os.close(fd)

    def put(self, name: str, text: str) -> dict[str, Any]:
        """Write a new file and do not come back before it is in the store. The directory must be
        listed too: weed, once the disk of its cache was full, writes and lists no more."""
        with self.top() as top:
            how = os.O_CREAT | os.O_EXCL | os.O_WRONLY
            fd = os.open(_at_top(name), how, 0o600, dir_fd=top)
        try:
            os.write(fd, text.encode())
            os.fsync(fd)
        finally:
            os.close(fd)
        with self.top() as top, os.scandir(top) as found:
            next(found, None)
        return {}

    def remove(self, name: str) -> dict[str, Any]:
        with contextlib.suppress(FileNotFoundError), self.top() as top:
            os.unlink(_at_top(name), dir_fd=top)
        return {}

    def own(self, uid: int) -> dict[str, Any]:
        """Give the top directory to the sandbox's user: weed shows it as root's at every mount."""
        with self.top() as top:
            os.fchown(top, uid, uid)
        return {}

    def listing(self, path: str, after: str = "", limit: int = 0) -> dict[str, Any]:
        """The entries of one directory by name, links not followed; with a `limit`, so many of
        those that come behind `after`, and whether there are more."""
        fd = self._open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            with os.scandir(fd) as found:
                names = ((_shown(item.name), item.name) for item in found)
                behind = (pair for pair in names if not after or pair[0] > after)
                pairs = heapq.nsmallest(limit + 1, behind) if limit else sorted(behind)
            more = bool(limit) and len(pairs) > limit
            entries = []
            for shown, name in pairs[:limit] if more else pairs:
                try:
                    info = os.stat(name, dir_fd=fd, follow_symlinks=False)
                except FileNotFoundError:
                    continue  # deleted meanwhile
                entries.append(
                    {
                        "name": shown,
                        "kind": _kind(info.st_mode),
                        "size": info.st_size,
                        "mtime": info.st_mtime,
                        "mtime_ns": info.st_mtime_ns,
                    }
                )
            upto = pairs[limit - 1][0] if more else ""
            return {"entries": entries, "upto": upto}
        finally:
            os.close(fd)

    def read(self, path: str, offset: int, size: int) -> dict[str, Any]:
        """A piece of a regular file, base64."""
        fd = self._open(path, os.O_RDONLY | os.O_NONBLOCK)
        try:
            info = os.fstat(fd)
            if not stat.S_ISREG(info.st_mode):
                raise OSError(errno.EISDIR, "not a regular file")
            data = os.pread(fd, size, offset)
            return {"data": base64.b64encode(data).decode(), "size": info.st_size}
        finally:
            os.close(fd)

    def take(self, pieces: list[dict[str, Any]]) -> dict[str, Any]:
        """Pieces of files, base64, in the order they are asked for; None for what is not there as
        a regular file any more."""
        return {"pieces": [self._piece(**piece) for piece in pieces]}

    def _piece(self, path: str, offset: int, size: int) -> str | None:
        try:
            data: str = self.read(path, offset, size)["data"]
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ELOOP):
                return None
            raise
        return data

    def fill(self, pieces: list[dict[str, Any]], uid: int | None) -> dict[str, Any]:
        """Write pieces of new files, making what they need; a file begins with its piece at 0. They
        are given to `uid`, where we are somebody else. A name that is taken is left as it is, and
        told."""
        taken: set[str] = set()
        for piece in pieces:
            if piece["path"] in taken:
                continue
            steps = piece["path"].split("/")
            if not all(steps) or set(steps) & {".", ".."}:
                raise OSError(errno.EINVAL, "not a plain path")
            parent = self._make(steps[:-1], uid)
            try:
                flags = os.O_WRONLY | os.O_NOFOLLOW
                flags |= 0 if piece["offset"] else os.O_CREAT | os.O_EXCL
                fd = os.open(steps[-1], flags, 0o644, dir_fd=parent)
            except FileExistsError:
                taken.add(piece["path"])
                continue
            finally:
                os.close(parent)
            try:
                os.pwrite(fd, base64.b64decode(piece["data"]), piece["offset"])
                if uid is not None:
                    os.fchown(fd, uid, uid)
            finally:
                os.close(fd)
        return {"taken": sorted(taken)}

    def _make(self, steps: list[str], uid: int | None) -> int:
        """A descriptor of the directory, made where it is missing."""
        fd = os.open(self.root, DIRECTORY)
        for step in steps:
            try:
                with contextlib.suppress(FileExistsError):
                    os.mkdir(step, 0o755, dir_fd=fd)
                    if uid is not None:
                        os.chown(step, uid, uid, dir_fd=fd, follow_symlinks=False)
                deeper = os.open(step, DIRECTORY, dir_fd=fd)
            finally:
                os.close(fd)
            fd = deeper
        return fd

    def _open(self, path: str | bytes, flags: int) -> int:
        """Open below the top, step by step, never through a link: it could lead anywhere."""
        steps = [step for step in os.fsencode(path).split(b"/") if step]
        if not steps:
            return os.open(self.root, flags | os.O_NOFOLLOW)
        with self._parent(steps) as parent:
            return os.open(steps[-1], flags | os.O_NOFOLLOW, dir_fd=parent)

    @contextlib.contextmanager
    def _parent(self, steps: list[bytes]) -> Iterator[int]:
        """A descriptor of the directory that the last step is in."""
        fd = os.open(self.root, STEP)
        try:
            for step in steps:
                if step in (b".", b"..") or b"\0" in step:
                    raise OSError(errno.EINVAL, "not a plain path")
            for step in steps[:-1]:
                deeper = os.open(step, STEP, dir_fd=fd)
                os.close(fd)
                fd = deeper
            yield fd
        finally:
            os.close(fd)

    def scan(
        self, *, token: str, held: list[int], distrusted: list[str] | None = None
    ) -> dict[str, Any]:
        """Look at every name: how many there are, and how many `settle` will read. `token` is what
        the caller's last `settle` gave: without it the next one tells everything anew. Files with
        an inode of `held`, and those of `distrusted`, are read although nothing tells that they
        changed."""
        self.full = token != self.token
        self.scanned = True
        self.found, self.odd, self.pending = {}, {}, []
        for path in distrusted or ():
            self.known.pop(path.encode(), None)
        inodes = set(held)
        with self.top() as top:
            self._look(top, inodes)
        gone = sum(name not in self.found for name in self.told)
        return {"names": len(self.found), "pending": len(self.pending), "gone": gone}

    def _look(self, top: int, inodes: set[int]) -> None:
        for name, info, parent in self._scan(top, b"", MOST_LEVELS):
            text = _kept_name(name)
            if text is None:
                self.odd[_printed(name)] = (
                    "its name cannot be kept: rename it (valid UTF-8, no backslash)"
                )
                continue
            mark = self.mark(info)
            known = self.known.get(name)
            if known is None or known.mark != mark or info.st_ino in inodes:
                entry = Known(mark, self._describe(name, text, info, parent))
                if entry.plain["kind"] == "file":
                    self.pending.append((name, entry))
                self.found[name] = entry
            else:
                self.found[name] = known

    def settle(self, *, sync_root: bool) -> dict[str, Any]:
        """fsync and hash what the scan before found changed; every entry that is not as it was at
        the last `settle`."""
        if not self.scanned:  # whoever scanned died: to have seen nothing is not to be empty
            raise OSError(errno.ESTALE, "nothing was scanned")
        self.scanned = False
        problems = self._sync_and_hash()
        if sync_root and not self.odd:  # with such a name geesefs never comes back from it
            self._sync_root()
        old, self.known = self.known, {}
        told = []
        for name, entry in self.found.items():
            if entry.settled:
                self.known[name] = entry
            if self.full or old.get(name) is not entry:
                told.append(entry.plain)
        gone = [] if self.full else [name.decode() for name in self.told if name not in self.found]
        self.told = self.found
        self.token = os.urandom(8).hex()
        return {
            "token": self.token,
            "full": self.full,
            "entries": told,
            "read": [entry.plain["path"] for _, entry in self.pending],
            "gone": gone,
            "odd": self.odd,
            "problems": problems,
        }

    def _scan(
        self, directory: int, below: bytes, levels: int
    ) -> Iterator[tuple[bytes, os.stat_result, int]]:
        """Every name below an open directory, with a descriptor of the one that it is in."""
        with os.scandir(directory) as found:
            seen = [(os.fsencode(item.name), item.stat(follow_symlinks=False)) for item in found]
        for last, info in seen:
            name = b"%b/%b" % (below, last) if below else last
            yield name, info, directory
            if not stat.S_ISDIR(info.st_mode):
                continue
            if levels == 0:
                self.odd[_printed(name)] = "it is nested too deep to be kept"
                continue
            try:
                inner = os.open(last, DIRECTORY, dir_fd=directory)
            except OSError as error:
                if error.errno in CHANGED:
                    continue
                raise
            try:
                yield from self._scan(inner, name, levels - 1)
            finally:
                os.close(inner)

    def _describe(
        self, name: bytes, text: str, info: os.stat_result, parent: int
    ) -> dict[str, Any]:
        entry: dict[str, Any] = {
            "path": text,
            "kind": _kind(info.st_mode),
            "size": None,
            "sha256": None,
            "mode": stat.S_IMODE(info.st_mode),
            "mtime_ns": info.st_mtime_ns,
            "target": None,
        }
        if entry["kind"] == "file":
            entry["size"] = info.st_size
        if entry["kind"] == "symlink":
            target = os.readlink(name.rpartition(b"/")[2], dir_fd=parent)
            try:
                entry["target"] = target.decode("utf-8")
            except UnicodeDecodeError:
                self.odd[text] = "what it links to cannot be kept: it is not valid UTF-8"
        return entry

    def _sync_and_hash(self) -> list[dict[str, Any]]:
        for entry in self.found.values():
            entry.settled = entry.settled or entry.plain["kind"] != "file"
        old_enough = time.time_ns() - self.young_ns
        with concurrent.futures.ThreadPoolExecutor(WORKERS) as pool:
            failed = list(pool.map(self._try_to_hash, self.pending))
        marks = self._marks_now()
        problems = []
        for (name, entry), problem in zip(self.pending, failed, strict=True):
            if problem is None and marks.get(name) != entry.mark:
                reason = "it was written to while it was read"
                problem = {"path": entry.plain["path"], "errno": 0, "reason": reason}
            if problem is not None:
                problems.append(problem)
            elif max(entry.mark[2:4]) < old_enough:
                entry.settled = True
        return problems

    def _try_to_hash(self, item: tuple[bytes, Known]) -> dict[str, Any] | None:
        name, entry = item
        try:
            self._sync_and_hash_one(name, entry.plain)
        except OSError as error:
            path, reason = entry.plain["path"], str(error.strerror)
            return {"path": path, "errno": error.errno, "reason": reason}
        return None

    def _sync_and_hash_one(self, name: bytes, entry: dict[str, Any]) -> None:
        fd = self._open(name, os.O_RDONLY | os.O_NONBLOCK)
        try:
            os.fsync(fd)
            sha256, md5 = hashlib.sha256(), hashlib.md5(usedforsecurity=False)
            while data := os.read(fd, CHUNK):
                sha256.update(data)
                md5.update(data)
            entry.update(sha256=sha256.hexdigest(), md5=md5.hexdigest())
        finally:
            os.close(fd)

    def _marks_now(self) -> dict[bytes, Mark]:
        """Of what was read, after it was. Another scan answers for a whole directory at once, which
        is cheaper where many of its files were read."""
        marks = {}
        if len(self.pending) * SCANNED_PER_STAT > len(self.found):
            with self.top() as top:
                for name, info, _ in self._scan(top, b"", MOST_LEVELS):
                    marks[name] = self.mark(info)
        else:
            for name, _ in self.pending:
                steps = name.split(b"/")
                with contextlib.suppress(FileNotFoundError), self._parent(steps) as parent:
                    info = os.stat(steps[-1], dir_fd=parent, follow_symlinks=False)
                    marks[name] = self.mark(info)
        return marks

    def _sync_root(self) -> None:
        """geesefs stalls ~28 s here in every second run, unless something keeps opening files."""
        done = threading.Event()

        def sync() -> None:
            try:
                with self.top() as top:
                    os.fsync(top)
            finally:
                done.set()

        thread = threading.Thread(target=sync)
        thread.start()
        while not done.wait(POKE_SECONDS):
            with self.top() as top, os.scandir(top) as found:
                for item in found:
                    if item.is_file(follow_symlinks=False):
                        os.close(os.open(item.name, os.O_RDONLY | os.O_NOFOLLOW, dir_fd=top))
                        break
        thread.join()


def _at_top(name: str) -> str:
    if "/" in name or name in ("", ".", ".."):
        raise OSError(errno.EINVAL, "not a plain name")
    return name


def _shown(name: str) -> str:
    return _printed(os.fsencode(name))


def _printed(name: bytes) -> str:
    return name.decode("utf-8", "backslashreplace")


def _kept_name(name: bytes) -> str | None:
    """The name, if every engine can keep it."""
    try:
        text = name.decode("utf-8")
    except UnicodeDecodeError:
        return None
    return None if "\\" in text else text


def _kind(mode: int) -> str:
    if stat.S_ISDIR(mode):
        return "directory"
    if stat.S_ISLNK(mode):
        return "symlink"
    return "file" if stat.S_ISREG(mode) else "special"


def main() -> None:
    walker = Walker(sys.argv[1])
    for line in sys.stdin:
        request = json.loads(line)
        op = request.pop("op")
        try:
            answer = {"ok": getattr(walker, op)(**request)}
        except OSError as error:
            answer = {"errno": error.errno, "error": f"{error.strerror}: {op}"}
        body = json.dumps(answer).encode()
        sys.stdout.buffer.write(b"%d\n" % len(body) + body)
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
