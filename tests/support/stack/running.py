"""Embedded stacks as the `holdfast` command runs them, in directories of the test."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from stack.embedded.layout import Layout
from stack.embedded.processes import is_running
from stack.embedded.state import StackState, read_state
from stack.settings import load_settings
from tests.support.paths import ROOT
from tests.support.services import free_port

PARTIAL = """
import asyncio, sys
from stack.embedded.stack import run_stack
from stack.settings import load_settings
asyncio.run(run_stack(load_settings(), only=sys.argv[1:]))
"""


@dataclass(frozen=True)
class Place:
    """The directories and the api port of one stack, and how to run it there."""

    home: Path
    port: int

    @property
    def data(self) -> Path:
        return self.home / "data"

    @property
    def layout(self) -> Layout:
        return Layout(self.data, self.home / "run")

    @property
    def environment(self) -> dict[str, str]:
        mine = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
        return mine | {
            "HOLDFAST_CACHE": str(load_settings().cache_root),
            "HOLDFAST_DATA_DIR": str(self.data),
            "HOLDFAST_RUN_DIR": str(self.home / "run"),
            "HOLDFAST_API_PORT": str(self.port),
            "HOLDFAST_OFFLINE": "1",
        }

    @property
    def state(self) -> StackState | None:
        return read_state(self.layout)

    def phase(self) -> str | None:
        state = self.state
        return state.phase if state is not None and is_running(state.supervisor) else None

    def command(
        self, *words: str, seconds: float = 120, env: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run `holdfast` to its end."""
        return subprocess.run(
            (sys.executable, "-m", "stack.cli", *words),
            cwd=ROOT,
            env={**self.environment, **(env or {})},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )

    @contextlib.contextmanager
    def running(self, *parts: str) -> Iterator[subprocess.Popen[bytes]]:
        """A supervisor of some parts, ready; it is stopped at the end of the block."""
        supervisor = subprocess.Popen(
            (sys.executable, "-c", PARTIAL, *parts),
            cwd=ROOT,
            env=self.environment,
            start_new_session=True,
        )
        try:
            wait(lambda: self.phase() == "ready" or supervisor.poll() is not None, 60)
            assert self.phase() == "ready", self.state
            yield supervisor
        finally:
            supervisor.terminate()
            supervisor.wait(60)


def place(home: Path) -> Place:
    return Place(home, free_port())


def wait(condition: Callable[[], bool], seconds: float) -> None:
    """Poll until the condition holds."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds} s"
        time.sleep(0.03)


def processes_of(place: Place) -> list[str]:
    """Command lines of everything that runs for this stack: by its environment or arguments."""
    return list(_found(place).values())


def pids_of(place: Place) -> list[int]:
    return list(_found(place))


def _found(place: Place) -> dict[int, str]:
    mark = bytes(place.home)
    found = {}
    for directory in Path("/proc").glob("[0-9]*"):
        try:
            argv = (directory / "cmdline").read_bytes()
            environment = (directory / "environ").read_bytes()
        except OSError:
            continue
        if argv and (mark in argv or mark in environment):
            found[int(directory.name)] = argv.replace(b"\0", b" ").decode("utf-8", "replace")
    return found
