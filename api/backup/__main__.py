"""`python -m api.backup create|restore|check FILE`; `-` is standard output, or input.

Works with the api's own settings, where the api runs: `holdfast backup` calls it for the embedded
stack, `docker compose exec api` in a container (docs/operations.md). Standard output has the result
as one line of JSON, unless the backup itself goes there; all else goes to standard error.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import fcntl
import json
import os
import signal
import sys
from collections.abc import Coroutine, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any

from pydantic import ValidationError

from api.backup.create import Report, create
from api.backup.errors import BackupError, BackupRunning
from api.backup.restore import check, restore
from api.db.migrate import MigrationError
from api.settings import StorageSettings, problems
from contracts.errors import HoldfastError
from contracts.secret_files import secret_files

# The backup was written, and says of itself that something in it is not whole.
NOT_WHOLE = 4
WAIT_SECONDS = 300.0


def main() -> int:
    """The exit code."""
    asked = _arguments()
    try:
        return _check(asked.file) if asked.command == "check" else _work(asked)
    except (HoldfastError, MigrationError) as error:
        _say(f"error: {error}")
        if hint := getattr(error, "hint", ""):
            _say(f"hint: {hint}")
    except OSError as error:
        _say(f"error: {error}")
    except (KeyboardInterrupt, asyncio.CancelledError):
        _say("error: stopped before it was done; what was written so far is removed")
    return 1


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser("python -m api.backup", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    making = commands.add_parser("create", help="write a backup")
    making.add_argument("--wait", type=float, default=WAIT_SECONDS, help="for running turns, s")
    bringing = commands.add_parser("restore", help="into an empty stack")
    checking = commands.add_parser("check", help="read a backup to its end")
    for each in (making, bringing, checking):
        each.add_argument("file", type=str)
    return parser.parse_args()


def _work(asked: argparse.Namespace) -> int:
    try:
        settings = StorageSettings(_secrets_dir=secret_files())
    except ValidationError as error:
        for problem in problems(error):
            _say(f"error: {problem}")
        return 2
    if asked.command == "restore":
        with _opened(asked.file) as file:
            content = _run(restore(settings, file, say=_say))
        _tell(asdict(content), sys.stdout)
        return 0
    if asked.file == "-":
        report: Report = _run(create(settings, sys.stdout.buffer, wait=asked.wait, say=_say))
    else:
        with write_whole(Path(asked.file)) as file:
            report = _run(create(settings, file, wait=asked.wait, say=_say))
    _tell(asdict(report), sys.stderr if asked.file == "-" else sys.stdout)
    return 0 if report.whole else NOT_WHOLE


def _check(name: str) -> int:
    with _opened(name) as file:
        _tell(asdict(_run(check(file, say=_say))), sys.stdout)
    return 0


def _run(work: Coroutine[Any, Any, Any]) -> Any:
    """A SIGTERM ends it as Ctrl-C does: with what was begun undone."""

    async def run() -> Any:
        task = asyncio.current_task()
        assert task is not None
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
        return await work

    try:
        return asyncio.run(run())
    except BaseExceptionGroup as group:
        raise _first(group) from group


def _first(group: BaseExceptionGroup[Any]) -> BaseException:
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


@contextlib.contextmanager
def _opened(name: str) -> Iterator[IO[bytes]]:
    if name == "-":
        yield sys.stdin.buffer
        return
    with Path(name).open("rb") as file:
        yield file


@contextlib.contextmanager
def write_whole(path: Path) -> Iterator[IO[bytes]]:
    """A file that gets its name when it is whole, and that only its owner can read.

    Raises: BackupError, when there is one of that name, or somebody writes it.
    """
    if path.exists():
        raise BackupError(f"{path} is there already.", hint="Choose another name.")
    partial = path.with_name(f"{path.name}.partial")
    handle = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    try:
        _claim(handle, partial)
    except BaseException:
        os.close(handle)
        raise
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        partial.rename(path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def _claim(handle: int, partial: Path) -> None:
    """Be the only one who writes it; what a backup that was killed has left is thrown away.

    Raises: BackupError.
    """
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        mine = partial.exists() and os.path.samestat(os.fstat(handle), partial.stat())
    except BlockingIOError:
        mine = False
    if not mine:
        raise BackupRunning(f"Another backup writes {partial}.", hint="Choose another name.")
    os.ftruncate(handle, 0)
    os.fchmod(handle, 0o600)


def _say(text: str) -> None:
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


def _tell(result: dict[str, Any], to: IO[str]) -> None:
    to.write(json.dumps(result) + "\n")
    to.flush()


if __name__ == "__main__":
    sys.exit(main())
