"""Processes by identity: a pid alone may belong to someone else by now."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from stack.embedded import launch
from stack.embedded.files import read_json
from stack.embedded.launch import is_running as is_running
from stack.embedded.waiting import until
from stack.errors import PartFailed

_LAUNCHER = Path(launch.__file__)
# SIGKILL takes effect at once, save for a process in an uninterruptible system call.
KILL_SECONDS = 10.0


async def spawn(
    argv: tuple[str, ...],
    *,
    env: Mapping[str, str],
    cwd: Path,
    pid_file: Path,
    output: int,
    stop_signal: signal.Signals,
    stop_seconds: float,
    wrapper: tuple[str, ...] = (),
) -> asyncio.subprocess.Process:
    """Start `argv` as the leader of its own session, under `wrapper`, which must not fork.

    It gets `stop_signal` when this process dies, and `end_strays` knows how to end it.
    """
    launcher = (sys.executable, "-I", "-S", str(_LAUNCHER))
    options = (str(pid_file), str(int(stop_signal)), str(stop_seconds), str(os.getpid()))
    return await asyncio.create_subprocess_exec(
        *(*wrapper, *launcher, *options, "--", *argv),
        env=dict(env),
        cwd=cwd,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=output,
        stderr=asyncio.subprocess.STDOUT,
        start_new_session=True,
    )


async def run_tool(
    name: str,
    *argv: str,
    env: Mapping[str, str],
    cwd: Path,
    seconds: float,
    given: bytes | None = None,
) -> str:
    """Run the program that people know as `name` to its end, and return what it printed.

    Raises:
        PartFailed: it took longer than `seconds`, or exited with another code than 0.
    """
    process = await asyncio.create_subprocess_exec(
        *argv,
        env=dict(env),
        cwd=cwd,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        async with asyncio.timeout(seconds):
            output, _ = await process.communicate(given)
    except TimeoutError:
        raise PartFailed(f"{name} took longer than {seconds:g} s") from None
    finally:
        if process.returncode is None:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    said = output.decode("utf-8", "replace").strip()
    if process.returncode != 0:
        raise PartFailed(f"{name} {describe_exit(process.returncode or 0)}: {said[-2000:]}")
    return said


async def end_strays(pids: Path) -> list[str]:
    """End what a supervisor that died left behind; the names of what there was.

    Bounded: each gets its own signal, and SIGKILL to its whole group after its own time.
    """
    found: list[str] = []
    async with asyncio.TaskGroup() as group:
        for pid_file in _pid_files(pids):
            group.create_task(_end_stray(pid_file, found))
    return sorted(found)


async def _end_stray(pid_file: Path, found: list[str]) -> None:
    record = read_json(pid_file)
    if isinstance(record, dict) and is_running(record.get("process")):
        who, pid = record["process"], int(record["process"]["pid"])
        found.append(pid_file.stem)
        with suppress(ProcessLookupError):
            os.kill(pid, record["signal"])
        if not await until(lambda: not is_running(who), record["seconds"]):
            with suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)
            await until(lambda: not is_running(who), KILL_SECONDS)
    _forget(pid_file)


def _pid_files(pids: Path) -> list[Path]:
    return sorted(pids.glob("*.json"))


def _forget(pid_file: Path) -> None:
    pid_file.unlink(missing_ok=True)


def describe_exit(code: int) -> str:
    """An exit as people say it."""
    if code >= 0:
        return f"exited with code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"
