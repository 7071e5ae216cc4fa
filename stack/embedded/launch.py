"""Becomes a part of the stack: `python -I -S launch.py PIDFILE SIGNAL SECONDS PARENT -- …`.

Between fork and exec it asks for SIGNAL when the supervisor dies and writes down who it is,
so that no part is ever running without a pid file, nor without how to end it: SIGNAL, then
after SECONDS SIGKILL. Only the standard library: it starts often.
"""

import ctypes
import json
import os
import resource
import signal
import sys
from collections.abc import Mapping
from pathlib import Path

_PR_SET_PDEATHSIG = 1


def identity(pid: int) -> dict[str, int | str] | None:
    """What tells this process from a later one with the same pid; None when it is not running."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return None
    # the name in parentheses may hold anything, so count from its end
    fields = stat.rpartition(")")[2].split()
    if fields[0] in ("Z", "X"):
        return None
    return {"pid": pid, "started": int(fields[19]), "boot": boot}


def is_running(who: Mapping[str, int | str] | None) -> bool:
    """Whether that very process runs still."""
    return who is not None and identity(int(who["pid"])) == who


def main(arguments: list[str]) -> None:
    pid_file, stop_signal, seconds = Path(arguments[0]), int(arguments[1]), float(arguments[2])
    parent, program = int(arguments[3]), arguments[5:]
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, stop_signal, 0, 0, 0) != 0:
        sys.exit(f"prctl failed: {os.strerror(ctypes.get_errno())}")
    if os.getppid() != parent:
        sys.exit("the supervisor died before its part started")
    draft = pid_file.with_suffix(".new")
    record = {"process": identity(os.getpid()), "signal": stop_signal, "seconds": seconds}
    draft.write_text(json.dumps(record), encoding="ascii")
    draft.replace(pid_file)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # parts hold secrets in their memory
    # Python ignores these two, and an ignored signal stays ignored across exec
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    os.execv(program[0], program)


if __name__ == "__main__":
    main(sys.argv[1:])
