"""What a running stack tells other commands: who supervises it, and how its parts are."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal

from stack.embedded.files import write_private
from stack.embedded.launch import identity, is_running
from stack.embedded.layout import DataFiles, Layout
from stack.embedded.part import PartState
from stack.errors import StackBusy

Phase = Literal["starting", "ready", "stopping", "stopped", "failed"]


# Not a pydantic model: its import alone takes longer than all of `holdfast status`.
@dataclass(kw_only=True)
class StackState:
    """The content of `state.json`."""

    supervisor: dict[str, int | str]
    phase: Phase = "starting"
    url: str
    engine: str
    engine_why: str
    ports: dict[str, int]
    started_at: float
    ready_after: float | None = None
    parts: list[PartState] = field(default_factory=list)
    error: dict[str, Any] | None = None

    @property
    def is_running(self) -> bool:
        return is_running(self.supervisor)


def myself() -> dict[str, int | str]:
    """The identity of this process."""
    return identity(os.getpid()) or {}


def write_state(layout: Layout, state: StackState) -> None:
    write_private(layout.state, json.dumps(asdict(state), indent=1) + "\n")


def read_state(files: DataFiles) -> StackState | None:
    """What the last supervisor wrote, whether it runs still or not; None if it cannot be read."""
    try:
        return _parse(json.loads(files.state.read_bytes()))
    except (OSError, ValueError, TypeError, AttributeError):
        return None


def _parse(record: dict[str, Any]) -> StackState:
    """Fields of a newer release are ignored.

    Raises: TypeError, AttributeError: it is not the record of a stack.
    """
    known = _known(StackState, record)
    parts = [PartState(**_known(PartState, part)) for part in known.pop("parts", [])]
    return StackState(**known, parts=parts)


def _known(kind: type[StackState | PartState], record: dict[str, Any]) -> dict[str, Any]:
    names = {each.name for each in fields(kind)}
    return {name: value for name, value in record.items() if name in names}


def running_state(files: DataFiles) -> StackState | None:
    """What the supervisor that runs now wrote."""
    state = read_state(files)
    return state if state is not None and state.is_running else None


@contextmanager
def stack_lock(layout: Layout) -> Iterator[None]:
    """Be the only one who starts, supervises or clears this stack.

    Raises:
        StackBusy: someone else is.
    """
    handle = os.open(layout.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        _claim(handle, layout)
        yield
    finally:
        os.close(handle)


def _claim(handle: int, layout: Layout) -> None:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise StackBusy(
            f"another holdfast command is at work on {layout.data}",
            hint="`holdfast status` shows it",
        ) from None
