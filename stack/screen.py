"""How the operating commands look on a terminal."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterable
from typing import Any

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from contracts.logs import fields, readable
from stack.commands.terminal import console, safe, styled
from stack.embedded.logs import STACK, Line
from stack.embedded.state import StackState

_COLOURS = {
    STACK: "bold",
    "postgres": "blue",
    "seaweedfs": "green",
    "gateway": "magenta",
    "sidecar": "cyan",
    "api": "yellow",
}
_STATE_COLOURS = {"ready": "green", "starting": "yellow", "restarting": "red", "failed": "red"}
_WIDTH = max(map(len, _COLOURS))
# weed tells every step it takes, and what it could encrypt and sign if it were asked to; its
# file has it all
_STAMP = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}\+00:00 ")
_CHATTER = {"seaweedfs": re.compile(r"I\d{4} |.*(SSE-S3 KeyManager|STS service)")}


class LogView:
    """Lines of all parts, each with the name of its part in the part's colour."""

    def __init__(self, *, as_json: bool, everything: bool = False) -> None:
        self._as_json = as_json
        self._everything = everything
        self._console = console()

    def __call__(self, line: Line) -> None:
        if self._as_json:
            entry = {"part": line.part, "at": line.at.isoformat(), "text": line.text}
            record = fields(line.text)
            put_json(entry if record is None else {**entry, "log": record})
            return
        chatter = _CHATTER.get(line.part)
        if not self._everything and chatter is not None and chatter.match(line.text):
            return
        row = Text()
        row.append(line.at.astimezone().strftime("%H:%M:%S "), style="dim")
        row.append(f"{line.part:<{_WIDTH}} │ ", style=_COLOURS.get(line.part, "white"))
        text = self._shown(line.text)
        row.append(safe(text), style="bold" if line.part == STACK else "")
        self._console.print(row)

    def _shown(self, text: str) -> str:
        """For a reader in words, without a second clock; for a program as it was written."""
        if not self._console.is_terminal:
            return text
        return _STAMP.sub("", readable(text))


class InstallView:
    """Progress of an installation: a bar on a terminal, lines elsewhere."""

    def __init__(self, *, quiet: bool) -> None:
        self._console = console(stderr=True, quiet=quiet)
        self._progress: Progress | None = None
        self._task: TaskID | None = None
        self._told = ""

    def say(self, text: str) -> None:
        self._console.print(styled(text))

    def step(self, title: str, done: float, total: float | None) -> None:
        if not self._console.is_terminal:
            quarter = int(4 * done / total) * 25 if total else 0
            told = f"{title} {quarter} %"
            if told != self._told and quarter < 100:
                self._told = told
                self._console.print(styled(told))
            return
        if self._progress is None or self._task is None:
            self._progress = _bar(self._console)
            self._progress.start()
            self._task = self._progress.add_task(title, total=total)
        self._progress.update(self._task, description=title, completed=done, total=total)

    def finish(self) -> None:
        if self._progress is not None:
            self._progress.stop()
        self._progress = self._task = None


class PartsView:
    """One line per part when it becomes ready, or when it stops."""

    def __init__(self, word: str, *, quiet: bool) -> None:
        self._console = console(stderr=True, quiet=quiet)
        self._word = word
        self._told: set[str] = set()
        self._started = time.monotonic()

    def __call__(self, state: StackState) -> None:
        for part in state.parts:
            if part.state == self._word and part.name not in self._told:
                self._told.add(part.name)
                after = time.monotonic() - self._started
                row = Text()
                row.append(f"{part.name:<{_WIDTH}} ", style=_COLOURS.get(part.name, ""))
                self._console.print(row.append(f"{self._word} after {after:.1f} s"))


def put_json(value: Any) -> None:
    """One JSON object on a line of its own, at once."""
    typer.echo(json.dumps(value))


def put_url(login_url: str) -> None:
    """The last line of `up`: on its own, so that terminals make it a link as a whole."""
    console().print(styled(f"\n  {login_url}\n", "bold green"))


def status_table(state: StackState) -> Table:
    table = Table(pad_edge=False, box=None)
    for name in ("part", "state", "pid", "up", "restarts", "last exit"):
        table.add_column(name, no_wrap=True)
    for part in state.parts:
        table.add_row(
            styled(part.name, _COLOURS.get(part.name, "")),
            styled(part.state, _STATE_COLOURS.get(part.state, "")),
            str(part.pid or ""),
            duration(time.time() - part.since) if part.pid else "",
            str(part.restarts or ""),
            styled(part.last_exit),
        )
    return table


def findings_table(rows: Iterable[tuple[str, str, str, str]]) -> Table:
    """Rows of (level, check, found, advice)."""
    colours = {"ok": "green", "warn": "yellow", "fail": "bold red"}
    table = Table(pad_edge=False, box=None, show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for level, check, found, advice in rows:
        said = Text(safe(found))
        if advice:
            said.append(f"\n→ {safe(advice)}", style=colours[level])
        table.add_row(styled(level, colours[level]), styled(check), said)
    return table


def duration(seconds: float) -> str:
    whole = max(0, int(seconds))
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def _bar(target: Console) -> Progress:
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=30),
        TextColumn("{task.percentage:>3.0f} %"),
        TimeElapsedColumn(),
    )
    return Progress(*columns, console=target, transient=True)
