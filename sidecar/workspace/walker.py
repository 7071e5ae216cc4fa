"""Touches a mounted workspace from the host, in a process of its own that can be killed when the
file system hangs (a thread could not).

A script of the standard library only: `python -I -S walker.py MOUNTPOINT`. Each request is one JSON
line on stdin; each answer is a line with its length and then that many bytes of JSON.
"""

from __future__ import annotations

import base64
import concurrent.futures
import contextlib
import errno
import hashlib
import json
import os
import stat
import sys
import threading
from typing import Any

CHUNK = 1 << 20
WORKERS = 8
POKE_SECONDS = 0.05


class Walker:
    def __init__(self, root: str) -> None:
        self.root = os.fsencode(root)
        self.known: dict[bytes, tuple[tuple[int, int, int], dict[str, Any]]] = {}

    def place(self, name: bytes) -> bytes:
        return os.path.join(self.root, name)  # noqa: PTH118 - bytes: names may be any

    def put(self, name: str, text: str) -> dict[str, Any]:
        """Write a new file and do not come back before it is in the store."""
        fd = os.open(self.place(name.encode()), os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
        try:
            os.write(fd, text.encode())
            os.fsync(fd)
        finally:
            os.close(fd)
        return {}

    def remove(self, name: str) -> dict[str, Any]:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.place(name.encode()))  # noqa: PTH108
        return {}

    def own(self, uid: int) -> dict[str, Any]:
        """Give the top directory to the sandbox's user: weed shows it as root's at every mount."""
        os.chown(self.root, uid, uid)
        return {}

    def listing(self, path: str) -> dict[str, Any]:
        """The entries of one directory, links not followed."""
        fd = self._open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            entries = []
            with os.scandir(fd) as found:
                for item in sorted(found, key=lambda item: item.name):
                    info = item.stat(follow_symlinks=False)
                    entries.append(
                        {
                            "name": item.name.encode("utf-8", "surrogateescape").decode(
                                "utf-8", "backslashreplace"
                            ),
                            "kind": _kind(info.st_mode),
                            "size": info.st_size,
                            "mtime": info.st_mtime,
                        }
                    )
            return {"entries": entries}
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

    def _open(self, path: str, flags: int) -> int:
        """Open below the top, step by step, never through a link: it could lead anywhere."""
        steps = [step for step in path.split("/") if step]
        fd = os.open(self.root, os.O_RDONLY | os.O_DIRECTORY)
        for number, step in enumerate(steps):
            if step in (".", ".."):
                os.close(fd)
                raise OSError(errno.EINVAL, "not a plain path")
            last = number == len(steps) - 1
            how = flags if last else os.O_RDONLY | os.O_DIRECTORY
            try:
                deeper = os.open(step, how | os.O_NOFOLLOW, dir_fd=fd)
            finally:
                os.close(fd)
            fd = deeper
        return fd

    def walk(self, *, sync_root: bool) -> dict[str, Any]:
        """Every entry; what changed since the last walk is hashed and fsynced."""
        entries: list[dict[str, Any]] = []
        odd_names: list[str] = []
        changed: list[tuple[bytes, os.stat_result, dict[str, Any]]] = []
        seen: dict[bytes, tuple[tuple[int, int, int], dict[str, Any]]] = {}
        for name, info in self._scan(b""):
            try:
                text = name.decode("utf-8")
            except UnicodeDecodeError:
                odd_names.append(name.decode("utf-8", "backslashreplace"))
                continue
            if "\\" in text:
                odd_names.append(text)
                continue
            entry = self._describe(name, text, info)
            entries.append(entry)
            if entry["kind"] != "file":
                continue
            mark = (info.st_size, info.st_mtime_ns, info.st_ino)
            old = self.known.get(name)
            if old is not None and old[0] == mark:
                entry.update(sha256=old[1]["sha256"], md5=old[1]["md5"])
                seen[name] = (mark, entry)
            else:
                changed.append((name, info, entry))
        problems = self._settle(changed, seen)
        if sync_root and not odd_names:  # with such a name geesefs never comes back from it
            self._sync_root()
        self.known = seen
        return {
            "entries": entries,
            "changed": [entry["path"] for _, _, entry in changed],
            "odd_names": odd_names,
            "problems": problems,
        }

    def _scan(self, below: bytes) -> Any:
        directory = os.path.join(self.root, below) if below else self.root  # noqa: PTH118
        with os.scandir(directory) as found:
            for item in sorted(found, key=lambda item: item.name):
                name = os.path.join(below, item.name) if below else item.name  # noqa: PTH118
                info = item.stat(follow_symlinks=False)
                yield name, info
                if stat.S_ISDIR(info.st_mode):
                    yield from self._scan(name)

    def _describe(self, name: bytes, text: str, info: os.stat_result) -> dict[str, Any]:
        entry: dict[str, Any] = {
            "path": text,
            "mode": stat.S_IMODE(info.st_mode),
            "mtime_ns": info.st_mtime_ns,
        }
        entry["kind"] = _kind(info.st_mode)
        if entry["kind"] == "file":
            entry["size"] = info.st_size
        if entry["kind"] == "symlink":
            target = os.readlink(self.place(name))  # noqa: PTH115
            entry["target"] = target.decode("utf-8", "backslashreplace")
        return entry

    def _settle(
        self,
        changed: list[tuple[bytes, os.stat_result, dict[str, Any]]],
        seen: dict[bytes, tuple[tuple[int, int, int], dict[str, Any]]],
    ) -> list[dict[str, str]]:
        problems = []

        def one(item: tuple[bytes, os.stat_result, dict[str, Any]]) -> str | None:
            name, info, entry = item
            try:
                after = self._hash_and_sync(name, entry)
            except OSError as error:
                return f"{error.strerror}"
            mark = (info.st_size, info.st_mtime_ns, info.st_ino)
            if (after.st_size, after.st_mtime_ns, after.st_ino) == mark:
                seen[name] = (mark, entry)
                return None
            return "it was written to while it was being read"

        with concurrent.futures.ThreadPoolExecutor(WORKERS) as pool:
            for (_, _, entry), reason in zip(changed, pool.map(one, changed), strict=True):
                if reason is not None:
                    problems.append({"path": entry["path"], "reason": reason})
        return problems

    def _hash_and_sync(self, name: bytes, entry: dict[str, Any]) -> os.stat_result:
        fd = os.open(self.place(name), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        try:
            os.fsync(fd)
            sha256, md5 = hashlib.sha256(), hashlib.md5(usedforsecurity=False)
            while data := os.read(fd, CHUNK):
                sha256.update(data)
                md5.update(data)
            entry.update(sha256=sha256.hexdigest(), md5=md5.hexdigest())
            return os.fstat(fd)
        finally:
            os.close(fd)

    def _sync_root(self) -> None:
        """geesefs stalls ~28 s here in every second run, unless something keeps opening files."""
        done = threading.Event()

        def sync() -> None:
            try:
                fd = os.open(self.root, os.O_RDONLY)
                try:
                    os.fsync(fd)
                finally:
                    os.close(fd)
            finally:
                done.set()

        thread = threading.Thread(target=sync)
        thread.start()
        while not done.wait(POKE_SECONDS):
            with os.scandir(self.root) as found:
                for item in found:
                    if item.is_file(follow_symlinks=False):
                        os.close(os.open(item.path, os.O_RDONLY))
                        break
        thread.join()


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
