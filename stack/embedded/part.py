"""What the supervisor knows about a part of the stack."""

from __future__ import annotations

import signal
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

# what it returns is said in the log
Hook = Callable[[], Awaitable[str | None]]
ReadyCheck = Callable[[int], Awaitable[bool]]
State = Literal["waiting", "starting", "ready", "restarting", "stopping", "stopped", "failed"]


@dataclass(frozen=True)
class Part:
    """One process and how to live with it.

    It starts after the parts it `needs` are ready; it starts beside those it only `uses`, and
    is ready after them. It stops before all of these.
    `first` runs once, before anything of this part starts; `prepare` before every start;
    `cleanup` once, after the last stop. `is_ready` gets the pid and must not raise. So does
    `is_stuck`, which is asked while the part is ready: whether it runs, does not do its work, and
    would not get well by itself. Then it is killed and started again. `hear` gets each line that
    the part prints.
    """

    name: str
    argv: tuple[str, ...]
    cwd: Path
    is_ready: ReadyCheck
    is_stuck: ReadyCheck | None = None
    hear: Callable[[str], None] | None = None
    # values may be secret: kept out of repr, so out of every message
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    needs: tuple[str, ...] = ()
    uses: tuple[str, ...] = ()
    wrapper: tuple[str, ...] = ()
    first: Hook | None = None
    prepare: Hook | None = None
    cleanup: Hook | None = None
    stop_signal: signal.Signals = signal.SIGTERM
    stop_seconds: float = 10.0
    ready_seconds: float = 60.0
    # for a part that never stops by itself in time: said while it is waited for
    stop_note: str = ""


@dataclass
class PartState:
    """Where a part stands, as `holdfast status` shows it."""

    name: str
    state: State = "waiting"
    pid: int | None = None
    since: float = 0.0
    restarts: int = 0
    last_exit: str = ""
    ready_after: float | None = None
