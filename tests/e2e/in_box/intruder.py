"""Runs in a box: tries every way to another session's files, processes and sockets.

`intruder.json` in its directory says what to look for, with the word spelt backwards: so nothing of
its own holds it. Prints one line, `SEEN {…}`: what each attempt came to, empty for nothing.
"""

from __future__ import annotations

import ctypes
import json
import os
import socket
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

PTRACE_SEIZE, PTRACE_DETACH = 0x4206, 17
AGENT = "http://127.0.0.1:2468/v1/acp"
PLACES = ("tmp", "dev/shm", "workspace", "session/workspace", "home/agent")
# System files of every box, and those of the kernel.
SKIPPED = ("/proc", "/sys", "/usr", "/opt", "/etc")
WITHIN_SECONDS = 5


class Intruder:
    def __init__(self, wanted: dict[str, Any]) -> None:
        self.word: str = wanted["word"][::-1]
        self.session: str = wanted["session"][::-1]
        self.servers: list[str] = [name[::-1] for name in wanted["servers"]]
        self.key: int = wanted["key"]
        self.port: int = wanted["port"]
        self.pids: list[int] = wanted["pids"]
        self.paths: list[str] = [path[::-1] for path in wanted["paths"]]
        self.kernel = ctypes.CDLL(None, use_errno=True)

    def attempts(self) -> dict[str, Callable[[], Any]]:
        return {
            "process list": lambda: self._processes("cmdline"),
            "environment": lambda: self._processes("environ"),
            "signal": self._signal,
            "pidfd": lambda: [os.pidfd_open(pid) for pid in self.pids],
            "ptrace": self._ptrace,
            "memory": lambda: [len(Path(f"/proc/{pid}/maps").read_text()) for pid in self.pids],
            "a process's root": self._roots,
            "a process's directory": self._directories,
            "files by their host path": lambda: [p for p in self.paths if os.path.lexists(p)],
            "files anywhere": lambda: [p for p in walk("/") if self.word in p or self.session in p],
            "what files say": self._contents,
            "tcp": lambda: self._connect(socket.AF_INET, ("127.0.0.1", self.port)),
            "abstract socket": lambda: self._connect(socket.AF_UNIX, f"\0{self.word}"),
            "named socket": lambda: self._connect(socket.AF_UNIX, f"/tmp/{self.word}.sock"),
            "host sockets": self._host_sockets,
            "shared memory": lambda: self._id(self.kernel.shmget(self.key, 0, 0)),
            "message queue": lambda: self._id(self.kernel.msgget(self.key, 0)),
            "posix queue": lambda: self._id(self.kernel.mq_open(f"/{self.word}".encode(), 0)),
            "table of sockets": self._tables,
            "table of mounts": lambda: self._text("/proc/self/mountinfo", self.session),
            "sandbox-agent": self._agent,
        }

    def run(self) -> dict[str, Any]:
        seen = {}
        for name, attempt in self.attempts().items():
            try:
                seen[name] = attempt() or ""
            except (OSError, urllib.error.URLError):
                seen[name] = ""
        return seen

    def _processes(self, what: str) -> list[str]:
        found = []
        for path in Path("/proc").glob(f"[0-9]*/{what}"):
            try:
                if self.word.encode() in path.read_bytes():
                    found.append(str(path))
            except OSError:
                continue
        return found

    def _signal(self) -> list[int]:
        for pid in self.pids:
            os.kill(pid, 0)
        return self.pids

    def _ptrace(self) -> list[int]:
        held = [p for p in self.pids if self.kernel.ptrace(PTRACE_SEIZE, p, None, None) == 0]
        for pid in held:
            self.kernel.ptrace(PTRACE_DETACH, pid, None, None)
        return held

    def _roots(self) -> list[str]:
        roots = [f"/proc/{pid}/root" for pid in self.pids]
        roots += [str(path) for path in Path("/proc").glob("[0-9]*/root")]
        paths = [f"{root}/{place}/{self.word}" for root in roots for place in PLACES]
        paths += [f"{root}{path}" for root in roots for path in self.paths]
        return [path for path in paths if reachable(path)]

    def _directories(self) -> list[str]:
        places = [str(path) for path in Path("/proc").glob("[0-9]*/cwd")]
        places += [f"/proc/{pid}/cwd" for pid in self.pids]
        return [place for place in places if reachable(f"{place}/{self.word}")]

    def _contents(self) -> list[str]:
        found = []
        for path in walk("/"):
            try:
                is_small = Path(path).is_file() and Path(path).stat().st_size < 1 << 20
                if is_small and self.word.encode() in Path(path).read_bytes():
                    found.append(path)
            except OSError:
                continue
        return found

    def _connect(self, family: int, address: Any) -> str:
        with socket.socket(family) as client:
            client.settimeout(WITHIN_SECONDS)
            client.connect(address)
            return f"connected to {address}"

    def _host_sockets(self) -> list[str]:
        found = []
        for path in self.paths:
            try:
                found.append(self._connect(socket.AF_UNIX, path))
            except OSError:
                continue
        return found

    def _id(self, number: int) -> str:
        return "" if number < 0 else f"id {number}"

    def _tables(self) -> str:
        port = f":{self.port:04X} "
        return self._text("/proc/net/unix", self.word) or self._text("/proc/net/tcp", port)

    def _text(self, path: str, needle: str) -> str:
        return path if needle in Path(path).read_text() else ""

    def _agent(self) -> list[str]:
        straight = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with straight.open(AGENT, timeout=WITHIN_SECONDS) as answer:
            said = answer.read().decode()
        return [name for name in self.servers if name in said]


def walk(top: str) -> Iterator[str]:
    for place, directories, files in os.walk(top):
        directories[:] = [n for n in directories if str(Path(place, n)) not in SKIPPED]
        yield from (str(Path(place, name)) for name in (*directories, *files))


def reachable(path: str) -> bool:
    try:
        Path(path).stat()
    except OSError:
        return False
    return True


if __name__ == "__main__":
    seen = Intruder(json.loads(Path("intruder.json").read_text())).run()
    sys.stdout.write(f"SEEN {json.dumps(seen)}\n")
