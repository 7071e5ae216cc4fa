"""Small real processes, as parts of a stack."""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from typing import Any

from stack.embedded.part import Part

# Writes its pid, then waits for SIGTERM and says that it came.
WELL_BEHAVED = """
import os, pathlib, signal, sys
home, name = pathlib.Path(sys.argv[1]), sys.argv[2]
def leave(*_):
    with (home / "order").open("a") as file:
        file.write(name + "\\n")
    sys.exit(0)
signal.signal(signal.SIGTERM, leave)
(home / (name + ".new")).write_text(str(os.getpid()))
os.rename(home / (name + ".new"), home / (name + ".pid"))
print("at work", flush=True)
while True:
    signal.pause()
"""

# Ignores everything it can, as does the child that it starts.
STUBBORN = """
import os, pathlib, signal, sys
home, name = pathlib.Path(sys.argv[1]), sys.argv[2]
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
    signal.signal(number, signal.SIG_IGN)
child = os.fork()
if child:
    (home / (name + ".new")).write_text(f"{os.getpid()} {child}")
    os.rename(home / (name + ".new"), home / (name + ".pid"))
while True:
    signal.pause()
"""


def pids(home: Path, name: str) -> list[int]:
    """What the part wrote about itself; empty while it has not."""
    try:
        return [int(word) for word in (home / f"{name}.pid").read_text().split()]
    except FileNotFoundError:
        return []


def part(home: Path, name: str, code: str = WELL_BEHAVED, **given: Any) -> Part:
    """A part that is ready when it has written its pid."""

    async def is_ready(pid: int) -> bool:
        return pid in pids(home, name)

    return Part(
        **{
            "name": name,
            "argv": (sys.executable, "-c", code, str(home), name),
            "cwd": home,
            "env": {"PATH": "/usr/bin:/bin"},
            "is_ready": is_ready,
            "stop_signal": signal.SIGTERM,
            "stop_seconds": 5.0,
            "ready_seconds": 20.0,
            **given,
        }
    )


def exists(pid: int) -> bool:
    """Whether a process with this pid runs; one that only waits to be reaped does not."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"
