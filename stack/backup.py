"""`holdfast backup` and `holdfast restore` of the embedded stack.

The work is done by `python -m api.backup`, with what the api knows of the database and the store.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import typer

from contracts.errors import NotFound
from stack.commands.terminal import console, styled
from stack.embedded import postgres, seaweedfs
from stack.embedded.control import start_detached, stop_stack
from stack.embedded.files import read_json
from stack.embedded.layout import Layout
from stack.embedded.state import StackState, running_state
from stack.errors import StackBusy
from stack.operate import install_quietly
from stack.screen import duration, put_json
from stack.settings import Settings, inherited_environment, load_settings

# What keeps sessions; the rest of the stack need not run.
STORAGE = (postgres.NAME, seaweedfs.NAME)
NOT_WHOLE = 4
STOP_SECONDS = 660.0


def backup(path: Path, *, wait: float, as_json: bool) -> None:
    """Write a backup of the stack, whether it runs or not.

    Raises:
        NotFound: there is no stack yet.
        HoldfastError: its storage does not come up.
    """
    settings = load_settings()
    layout = Layout.of(settings)
    if not layout.postgres.is_dir():
        raise NotFound(f"there is nothing in {layout.data} yet", hint="run `holdfast up` first")
    with _storage(settings, as_json=as_json):
        code, result = _run(layout, "create", "--wait", str(wait), str(path.absolute()))
    _told(code, result, as_json=as_json, path=path)
    raise typer.Exit(code)


def restore(path: Path, *, as_json: bool) -> None:
    """Bring a backup back into a data directory that has no session.

    Raises:
        StackBusy: the stack runs.
        NotFound: there is no such file.
        HoldfastError: its storage does not come up.
    """
    settings = load_settings()
    layout = Layout.of(settings)
    if running_state(layout) is not None:
        raise StackBusy(
            "the stack is running",
            hint="a backup goes into a stack that is stopped and empty: `holdfast down`, and set"
            " HOLDFAST_DATA_DIR to a new directory, or run `holdfast clean-data`",
        )
    _must_exist(path)
    install_quietly(settings, as_json=as_json)
    with _storage(settings, as_json=as_json):
        code, result = _run(layout, "restore", str(path.absolute()))
    _told(code, result, as_json=as_json, path=path)
    raise typer.Exit(code)


def check(path: Path, *, as_json: bool) -> None:
    """See that a backup is whole.

    Raises:
        NotFound: there is no such file.
    """
    _must_exist(path)
    code, result = _run(None, "check", str(path.absolute()))
    _told(code, result, as_json=as_json, path=path)
    raise typer.Exit(code)


def _must_exist(path: Path) -> None:
    if not path.is_file():
        raise NotFound(f"there is no file {path}", hint="it is what `holdfast backup` wrote")


@contextmanager
def _storage(settings: Settings, *, as_json: bool) -> Iterator[None]:
    """PostgreSQL and SeaweedFS for the time of the block, unless the stack runs anyway."""
    if running_state(Layout.of(settings)) is not None:
        yield
        return
    if not as_json:
        console(stderr=True).print(styled("starting PostgreSQL and SeaweedFS for this"))
    start_detached(settings, _nobody_watches, *STORAGE)
    try:
        yield
    finally:
        stop_stack(settings, _nobody_watches)


def _nobody_watches(_: StackState) -> None:
    """Two parts come up in a second or two."""


def _run(layout: Layout | None, *words: str) -> tuple[int, dict[str, Any]]:
    """Run the program to its end; its progress goes to the terminal.

    Ctrl-C reaches it too: it undoes what it has begun, which is waited for.
    """
    env = inherited_environment() | ({} if layout is None else _environment(layout))
    process = subprocess.Popen(
        (sys.executable, "-P", "-m", "api.backup", *words), env=env, stdout=subprocess.PIPE
    )
    try:
        said, _ = process.communicate()
    except BaseException:
        process.send_signal(signal.SIGTERM)
        process.wait(STOP_SECONDS)
        raise
    return process.returncode, json.loads(said) if said.strip() else {}


def _environment(layout: Layout) -> dict[str, str]:
    store = read_json(layout.store)
    return {
        "HOLDFAST_DATABASE_URL": postgres.database_url(layout),
        "HOLDFAST_S3_ENDPOINT": store["endpoint"],
        "HOLDFAST_S3_ACCESS_KEY": store["access_key"],
        "HOLDFAST_S3_SECRET_KEY": store["secret_key"],
        "HOLDFAST_S3_BUCKET": store["bucket"],
        "HOLDFAST_S3_STATE_BUCKET": seaweedfs.STATE_BUCKET,
    }


def _told(code: int, result: dict[str, Any], *, as_json: bool, path: Path) -> None:
    """The result in words; what went wrong was said by the program."""
    if not result:
        return
    if as_json:
        put_json({"path": str(path), **result})
        return
    out = console()
    counts = ", ".join(f"{result[name]} {name}" for name in ("sessions", "files", "rows"))
    size = f"{path.stat().st_size / 1e6:.1f} MB"
    took = f" in {duration(result['seconds'])}" if "seconds" in result else ""
    out.print(styled(f"{path}: {counts}, {size}, schema {result['schema']}{took}"))
    for name, words in _WORDS.items():
        for session in result.get(name, ()):
            out.print(styled(f"session {session}: {words}", "yellow"))
    if code == NOT_WHOLE:
        out.print(styled("the backup is written; these sessions are not whole in it", "yellow"))


_WORDS = {
    "mid_turn": "copied in the middle of a turn, which is interrupted where it comes back",
    "changed": "has files that were changed after its last receipt; they are in the backup",
    "restless": "has files that something keeps writing to; each is whole by itself",
    "damaged": "has receipts whose manifest is not in the store",
}
