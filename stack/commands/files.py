"""`files` and `cat`."""

from __future__ import annotations

import base64
import sys
from typing import Annotated

import typer
from pydantic import BaseModel
from rich.filesize import decimal
from rich.table import Table

from contracts.bodies import FileEntry, FilePage
from stack.commands import options as opt
from stack.commands.connect import connect
from stack.commands.terminal import command, console, put_json, safe, styled

MARKS = {"directory": "/", "symlink": "@", "file": ""}


class FileContent(BaseModel):
    """`cat --json`."""

    path: str
    size: int
    base64: str


@command
async def files(
    session: opt.SessionRef,
    path: Annotated[str, typer.Argument(help="A directory of the workspace.")] = "",
    live: opt.LiveView = False,
    as_json: opt.Json = False,
) -> None:
    """List files of a session."""
    async with connect() as hf:
        found = await hf.sessions.resolve(session)
        source = hf.live if live else hf.files
        entries = [entry async for entry in source.list(found.id, path)]
    if as_json:
        put_json(FilePage(path=path, entries=entries))
    elif entries:
        console().print(_table(entries))


@command
async def cat(
    session: opt.SessionRef,
    path: Annotated[str, typer.Argument(help="A file of the workspace.")],
    live: opt.LiveView = False,
    as_json: opt.Json = False,
) -> None:
    """Print a file of a session; its exact bytes, unless a terminal is looking."""
    async with connect() as hf:
        found = await hf.sessions.resolve(session)
        content = await (hf.live if live else hf.files).read(found.id, path)
    if as_json:
        put_json(
            FileContent(path=path, size=len(content), base64=base64.b64encode(content).decode())
        )
    elif sys.stdout.isatty():
        # An agent wrote this file: it may draw on the screen, not drive the terminal.
        typer.echo(safe(content.decode("utf-8", "replace")))
    else:
        typer.echo(content, nl=False)


def _table(entries: list[FileEntry]) -> Table:
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(justify="right", no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for entry in entries:
        changed = entry.modified_at
        table.add_row(
            "" if entry.size is None else decimal(entry.size),
            "" if changed is None else changed.astimezone().strftime("%Y-%m-%d %H:%M"),
            styled(safe(entry.name).replace("\n", "?") + MARKS[entry.kind]),
        )
    return table
