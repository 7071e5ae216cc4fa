"""Emulators as `holdfast emulate` runs them."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.paths import ROOT

STARTS_WITHIN = 60.0
ENDS_WITHIN = 60.0


@dataclass(frozen=True)
class Emulated:
    process: subprocess.Popen[str]
    told: Mapping[str, Any]

    @property
    def settings(self) -> dict[str, str]:
        return dict(self.told["settings"])

    def end(self, number: signal.Signals = signal.SIGINT) -> int:
        self.process.send_signal(number)
        return self.process.wait(ENDS_WITHIN)


def command(*words: str) -> tuple[str, ...]:
    return (sys.executable, "-m", "stack.cli", *words)


def clean_environment(data: Path, **given: str) -> dict[str, str]:
    """A user's without any setting of ours but these, and a stack of the test."""
    own = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    return {**own, "HOLDFAST_DATA_DIR": str(data), "HOLDFAST_OFFLINE": "1", **given}


@contextlib.contextmanager
def emulated(name: str, *options: str, env: Mapping[str, str]) -> Iterator[Emulated]:
    """Up and told about; ended with the block, unless the test did so."""
    process = subprocess.Popen(
        command("emulate", name, "--port", "0", "--json", *options),
        cwd=ROOT,
        env=dict(env),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield Emulated(process, json.loads(first_line(process)))
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
        assert process.stdout is not None
        process.stdout.close()
        process.wait(ENDS_WITHIN)


def first_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    ready, _, _ = select.select([process.stdout], [], [], STARTS_WITHIN)
    assert ready, f"nothing within {STARTS_WITHIN} s"
    line = process.stdout.readline()
    assert line, f"ended with {process.wait(ENDS_WITHIN)}"
    return line


def processes_naming(mark: str) -> list[int]:
    """Who has this on the command line."""
    found = []
    for directory in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if mark.encode() in (directory / "cmdline").read_bytes():
                found.append(int(directory.name))
    return found
