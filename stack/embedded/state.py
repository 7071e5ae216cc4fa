"""What a running stack tells other commands: who supervises it, and how its parts are."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from stack.embedded.files import write_private
from stack.embedded.launch import identity
from stack.embedded.layout import Layout
from stack.embedded.part import PartState
from stack.embedded.processes import is_running
from stack.errors import StackBusy

Phase = Literal["starting", "ready", "stopping", "stopped", "failed"]


class StackState(BaseModel):
    """The content of `state.json`."""

    model_config = ConfigDict(extra="ignore")

    supervisor: dict[str, int | str]
    phase: Phase = "starting"
    url: str
    engine: str
    engine_why: str
    ports: dict[str, int]
    started_at: float
    ready_after: float | None = None
    parts: list[PartState] = []
    error: dict[str, Any] | None = None

    @property
    def is_running(self) -> bool:
        return is_running(self.supervisor)


def myself() -> dict[str, int | str]:
    """The identity of this process."""
    return identity(os.getpid()) or {}


def write_state(layout: Layout, state: StackState) -> None:
    write_private(layout.state, state.model_dump_json(indent=1) + "\n")


def read_state(layout: Layout) -> StackState | None:
    """What the last supervisor wrote, whether it runs still or not."""
    try:
        return StackState.model_validate_json(layout.state.read_bytes())
    except (OSError, ValidationError):
        return None


def running_state(layout: Layout) -> StackState | None:
    """What the supervisor that runs now wrote."""
    state = read_state(layout)
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
