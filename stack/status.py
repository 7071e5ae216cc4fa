"""What `holdfast status` does. It is asked often, so it imports little."""

from __future__ import annotations

import json
import time
from dataclasses import asdict

import typer

from stack.commands.terminal import console, styled
from stack.embedded.layout import DataFiles
from stack.embedded.state import StackState, running_state
from stack.location import find_data_dir


def status(*, as_json: bool) -> bool:
    """Show the stack; False when it is not running."""
    files = DataFiles(find_data_dir())
    state = running_state(files)
    if as_json:
        body = asdict(state) if state else {"phase": "stopped"}
        shown = {"running": state is not None, "data_dir": str(files.data), **body}
        typer.echo(json.dumps(shown))
    elif state is None:
        typer.echo("not running")
    else:
        _show(files, state)
    return state is not None


def login_url(files: DataFiles, state: StackState) -> str:
    token = files.token.read_text(encoding="utf-8").strip()
    return f"{state.url}/?token={token}"


def _show(files: DataFiles, state: StackState) -> None:
    from stack.screen import duration, status_table

    out = console()
    ports = ", ".join(f"{name} {port}" for name, port in state.ports.items())
    up_for = duration(time.time() - state.started_at)
    out.print(styled(f"{state.phase} for {up_for}, supervisor pid {state.supervisor['pid']}"))
    out.print(styled(f"url     {login_url(files, state)}"))
    out.print(styled(f"engine  {state.engine} ({state.engine_why})"))
    out.print(styled(f"ports   {ports}"))
    out.print(styled(f"data    {files.data}\n"))
    out.print(status_table(state))
