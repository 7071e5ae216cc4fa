"""The operating commands, as a user types them."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from stack.embedded.control import mounts_under
from tests.support.paths import ROOT
from tests.support.stack.running import place, processes_of, wait

pytestmark = pytest.mark.usefixtures("harness_dir")


def test_status_of_a_stack_that_does_not_run_is_exit_code_3(stack_dir: Path) -> None:
    answer = place(stack_dir).command("status")
    assert (answer.returncode, answer.stdout) == (3, "not running\n")
    answer = place(stack_dir).command("status", "--json")
    assert answer.returncode == 3
    assert json.loads(answer.stdout)["running"] is False


def test_down_of_a_stack_that_does_not_run_is_no_error(stack_dir: Path) -> None:
    answer = place(stack_dir).command("down")
    assert (answer.returncode, answer.stdout) == (0, "not running\n")
    assert not (stack_dir / "data").exists()


@pytest.mark.parametrize("how", [("up",), ("up", "--detach")])
def test_a_taken_port_is_two_lines_and_nothing_is_started(
    stack_dir: Path, how: tuple[str, ...]
) -> None:
    stack = place(stack_dir)
    with socket.create_server(("127.0.0.1", stack.port)):
        answer = stack.command(*how)
    assert answer.returncode == 1
    error, hint = answer.stderr.splitlines()[-2:]
    assert error.startswith(f"error: port {stack.port} on 127.0.0.1 is taken by pid {os.getpid()}")
    assert hint.startswith("hint: ")
    assert "HOLDFAST_API_PORT" in hint
    assert "Traceback" not in answer.stderr + answer.stdout
    assert processes_of(stack) == []


def test_doctor_says_what_to_do_and_fails_when_something_must_be_done(stack_dir: Path) -> None:
    stack = place(stack_dir)
    with socket.create_server(("127.0.0.1", stack.port)):
        answer = stack.command("doctor", "--json")
    assert answer.returncode == 1
    checks = {check["check"]: check for check in json.loads(answer.stdout)["checks"]}
    assert {"fuse", "user namespaces", "bubblewrap", "node", "geesefs", "disk"} <= checks.keys()
    assert checks["api port"]["level"] == "fail"
    assert "HOLDFAST_API_PORT" in checks["api port"]["advice"]
    assert all(check["advice"] for check in checks.values() if check["level"] != "ok")
    assert "api port" in stack.command("doctor").stdout


def test_a_directory_that_is_not_ours_is_not_removed(stack_dir: Path) -> None:
    stack = place(stack_dir)
    stack.data.mkdir()
    (stack.data / "thesis.tex").write_text("years of work")
    answer = stack.command("clean-data", "--yes")
    assert answer.returncode == 1
    assert "does not look like a data directory" in answer.stderr
    assert (stack.data / "thesis.tex").exists()


def test_logs_of_an_unknown_part_name_the_known_ones(stack_dir: Path) -> None:
    answer = place(stack_dir).command("logs", "nonsense")
    assert answer.returncode == 1
    assert "there is no log of 'nonsense'" in answer.stderr


@pytest.mark.stack
def test_a_detached_stack_lives_until_down_and_leaves_nothing(stack_dir: Path) -> None:
    stack = place(stack_dir)
    try:
        up = stack.command("up", "--detach", "--json")
        assert up.returncode == 0, up.stderr
        told = json.loads(up.stdout)
        token = (stack.data / "token").read_text().strip()
        assert told["login_url"] == f"http://127.0.0.1:{stack.port}/?token={token}"
        assert httpx.get(f"{told['url']}/healthz", trust_env=False).status_code == 200

        again = stack.command("up", "--detach")
        assert again.returncode == 0
        assert "running already" in again.stdout
        assert told["login_url"] in again.stdout

        status = json.loads(stack.command("status", "--json").stdout)
        assert {part["name"]: part["state"] for part in status["parts"]} == dict.fromkeys(
            ("postgres", "seaweedfs", "gateway", "sidecar", "api"), "ready"
        )
        assert all(part["pid"] and part["restarts"] == 0 for part in status["parts"])
        assert "stack" in stack.command("logs", "-n", "500").stdout

        [gateway] = [part["pid"] for part in status["parts"] if part["name"] == "gateway"]
        os.kill(gateway, signal.SIGKILL)
        wait(lambda: _restarts(stack.command("status", "--json").stdout) == 1, 30)
    finally:
        down = stack.command("down")
    assert down.returncode == 0, down.stderr
    assert processes_of(stack) == []
    assert mounts_under(stack_dir) == []
    assert stack.command("status").returncode == 3


@pytest.mark.stack
def test_in_the_foreground_it_shows_its_logs_and_ctrl_c_stops_everything(stack_dir: Path) -> None:
    stack = place(stack_dir)
    output = stack_dir / "output"
    with output.open("wb") as file:
        process = subprocess.Popen(
            (sys.executable, "-m", "stack.cli", "up"),
            cwd=ROOT,
            env=stack.environment,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        wait(lambda: "/?token=" in output.read_text() or process.poll() is not None, 60)
        assert process.poll() is None, output.read_text()
    finally:
        # twice, as a terminal and `uv run` both deliver it: it counts once
        process.send_signal(signal.SIGINT)
        process.send_signal(signal.SIGINT)
        code = process.wait(60)
    shown = output.read_text()
    assert code == 0, shown
    assert re.search(r"^\d\d:\d\d:\d\d postgres +│ .*ready to accept connections", shown, re.M)
    assert re.search(r"stack +│ api: stopping", shown)
    assert "killing" not in shown
    assert processes_of(stack) == []
    assert mounts_under(stack_dir) == []


def _restarts(status: str) -> int:
    parts = json.loads(status)["parts"]
    return sum(part["restarts"] for part in parts if part["state"] == "ready")


@pytest.mark.stack
def test_a_second_start_makes_no_new_database_and_clean_data_removes_everything(
    stack_dir: Path,
) -> None:
    stack = place(stack_dir)
    try:
        assert stack.command("up", "--detach").returncode == 0
        assert stack.command("down").returncode == 0
        made = (stack.data / "postgres" / "PG_VERSION").stat()
        assert stack.command("up", "--detach").returncode == 0
        again = (stack.data / "postgres" / "PG_VERSION").stat()
        assert (again.st_ino, again.st_mtime_ns) == (made.st_ino, made.st_mtime_ns)
    finally:
        stack.command("down")
    answer = stack.command("clean-data", "--yes", "--json")
    assert answer.returncode == 0, answer.stderr
    assert json.loads(answer.stdout)["bytes"] > 0
    assert list(stack_dir.iterdir()) == []
