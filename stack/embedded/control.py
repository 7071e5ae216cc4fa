"""Start a detached stack, watch it come up, stop it, remove its data."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from contracts.errors import from_body
from stack.embedded.layout import Layout
from stack.embedded.processes import KILL_SECONDS, is_running
from stack.embedded.stack import clear_leftovers
from stack.embedded.state import StackState, read_state, running_state, stack_lock
from stack.errors import DirectoryUnsafe, PartFailed, StackBusy
from stack.settings import Settings, project_root

# The first start makes a database cluster and grows the store's first volumes.
START_SECONDS = 240.0
# api 15, sidecar 35, boxes 60, the rest 20: each bounded, one after the other.
STOP_SECONDS = 150.0
_POLL_SECONDS = 0.05

Watcher = Callable[[StackState], None]


def start_detached(settings: Settings, watch: Watcher, *only: str) -> StackState:
    """Start the supervisor in a session of its own and wait until the stack, or `only` some parts
    of it, is ready.

    Raises:
        HoldfastError: what kept it from coming up.
    """
    layout = Layout.of(settings)
    layout.make()
    output = layout.logs / "supervisor.out"
    with output.open("wb") as file:
        process = subprocess.Popen(
            (sys.executable, "-P", "-m", "stack.embedded", *only),
            cwd=project_root(),
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        return _watch_start(process, layout, output, watch)
    except BaseException:
        # also on Ctrl-C: nobody would know that it goes on starting
        process.terminate()
        raise


def wait_until_ready(layout: Layout, watch: Watcher) -> StackState | None:
    """Watch a stack that someone else is starting; None when it ends instead."""
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        state = running_state(layout)
        if state is None or state.phase in ("stopping", "stopped", "failed"):
            return None
        watch(state)
        if state.phase == "ready":
            return state
        time.sleep(_POLL_SECONDS)
    return None


def wait_until_gone(layout: Layout, watch: Watcher, seconds: float = STOP_SECONDS) -> bool:
    """Watch a stack that is stopping; False when it is still there after `seconds`."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        state = running_state(layout)
        if state is None:
            return True
        watch(state)
        time.sleep(_POLL_SECONDS)
    return False


@dataclass(frozen=True)
class Stopped:
    """What a stop found: a stack that ran, or only what a crash had left."""

    was_running: bool
    leftovers: tuple[str, ...] = ()


def stop_stack(settings: Settings, watch: Watcher) -> Stopped:
    """Stop the stack, and end what a supervisor that died has left.

    Raises:
        HoldfastError: something cannot be ended.
    """
    layout = Layout.of(settings)
    state = running_state(layout)
    if state is None:
        if not layout.secrets.is_dir():
            return Stopped(False)
        return Stopped(False, tuple(asyncio.run(clear_leftovers(settings))))
    pid = int(state.supervisor["pid"])
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGTERM)
    if not wait_until_gone(layout, watch):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        _wait_for_death(state)
        return Stopped(True, tuple(asyncio.run(clear_leftovers(settings))))
    last = read_state(layout)
    if last is not None and last.error is not None:
        raise from_body(last.error)
    return Stopped(True)


def remove_data(settings: Settings) -> int:
    """Remove the data directory of a stack that is stopped; the bytes that were in it.

    Raises:
        StackBusy: the stack runs.
        DirectoryUnsafe: it does not look like ours, or something is mounted in it.
    """
    layout = Layout.of(settings)
    if not layout.data.is_dir():
        return 0
    if not layout.secrets.is_dir():
        raise DirectoryUnsafe(
            f"{layout.data} does not look like a data directory of Holdfast",
            hint="look at HOLDFAST_DATA_DIR",
        )
    if running_state(layout) is not None:
        raise StackBusy("the stack is running", hint="run `holdfast down` first")
    asyncio.run(clear_leftovers(settings))
    with stack_lock(layout):
        if mounts := mounts_under(layout.data):
            raise DirectoryUnsafe(
                f"something is mounted at {mounts[0]}", hint=f"run: umount {mounts[0]}"
            )
        size = _bytes_in(layout.data)
        shutil.rmtree(layout.data)
        layout.remove_sockets()
    return size


def mounts_under(directory: Path) -> list[str]:
    """Mount points at or below `directory`: deleting there would delete in what is mounted."""
    prefix = os.fsencode(directory.resolve())
    found = []
    for line in Path("/proc/self/mountinfo").read_bytes().splitlines():
        # the kernel writes blanks and the like as \ooo
        target = line.split()[4].decode("unicode_escape").encode("latin-1")
        if target == prefix or target.startswith(prefix + b"/"):
            found.append(os.fsdecode(target))
    return found


def _watch_start(
    process: subprocess.Popen[bytes], layout: Layout, output: Path, watch: Watcher
) -> StackState:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        state = read_state(layout)
        if state is not None and state.supervisor.get("pid") == process.pid:
            watch(state)
            if state.phase == "ready":
                return state
        if process.poll() is not None:
            raise _why_it_ended(read_state(layout), process.pid, output)
        time.sleep(_POLL_SECONDS)
    raise PartFailed(
        f"the stack is not ready after {START_SECONDS:.0f} s", hint="`holdfast logs` tells more"
    )


def _why_it_ended(state: StackState | None, pid: int, output: Path) -> Exception:
    if state is not None and state.supervisor.get("pid") == pid and state.error is not None:
        return from_body(state.error)
    said = output.read_text(encoding="utf-8", errors="replace").strip()
    return PartFailed(f"the supervisor ended: {said[-2000:] or 'without a word'}")


def _wait_for_death(state: StackState) -> None:
    deadline = time.monotonic() + KILL_SECONDS
    while is_running(state.supervisor) and time.monotonic() < deadline:
        time.sleep(_POLL_SECONDS)


def _bytes_in(directory: Path) -> int:
    size = 0
    for parent, _, files in os.walk(directory):
        size += sum((Path(parent) / name).lstat().st_blocks * 512 for name in files)
    return size
