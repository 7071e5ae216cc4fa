"""What every process of ours that holds secrets does first."""

from __future__ import annotations

import ctypes
import resource

PR_SET_DUMPABLE = 4


def no_core_dumps() -> None:
    """The memory of this process is written to no file, and of its children's none either: their
    limit is inherited. A core pattern that is a program ignores limits, so this process also says
    that it cannot be dumped, which keeps others of the same user from reading it, too."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)
