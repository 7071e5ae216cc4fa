"""The user commands, called in this process or as one of their own."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable

import pytest
import typer
from typer.testing import CliRunner, Result

from contracts import events
from stack.commands import register
from tests.support.client.wire_server import TOKEN, FakeApi
from tests.support.paths import ROOT

PROGRAM = "import typer; from stack.commands import register; a = typer.Typer(); register(a); a()"


WAIT_SECONDS = 20


RECEIPT = events.Receipt(engine="weed", files=2, bytes=4096, manifest_sha256="ab" * 32, took=0.4)


GOOD: list[events.Event] = [
    events.SandboxReady(provider="local", sandbox_id="box-1", took=0.31),
    events.MountReady(engine="weed", why="geesefs is not installed", took=0.5),
    events.WorkspaceVerified(files=2, of=2),
    events.Resume(rung="new"),
    events.Thought(text="hmm"),
    events.Message(role="assistant", text="Hel"),
    events.Message(role="assistant", text="lo [bold]there[/bold] \x1b]0;owned\x07:smile:"),
    events.ToolCall(tool_call_id="t1", title="Bash: ls", kind="execute"),
    events.ToolResult(tool_call_id="t1", status="completed", output="a.txt\n\x1b[2Jb.txt\n"),
    RECEIPT,
    events.TurnCompleted(),
]


@pytest.fixture
def invoke(api: FakeApi) -> Callable[..., Result]:
    app = typer.Typer()
    register(app)

    def call(*args: str, stdin: str = "", url: str = api.url) -> Result:
        env = {"HOLDFAST_URL": url, "HOLDFAST_TOKEN": TOKEN}
        result = CliRunner().invoke(app, list(args), env=env, input=stdin)
        assert result.exception is None or isinstance(result.exception, SystemExit), (
            result.exception
        )
        return result

    return call


def start_command(api: FakeApi, *args: str) -> subprocess.Popen[str]:
    env = {**os.environ, "HOLDFAST_URL": api.url, "HOLDFAST_TOKEN": TOKEN}
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM, *args],
        cwd=ROOT,
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def wait_until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.02)
