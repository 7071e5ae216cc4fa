"""`holdfast doctor --provider`: a cloud, step by step."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from sidecar.account_settings import AccountSettings
from sidecar.doctor import examine
from stack.clouds import Cloud
from stack.commands.cloud_doctor import of_the_account, read_steps
from stack.settings import load_settings
from tests.support.paths import ROOT
from tests.support.requirements import missing
from tests.support.services import free_port, short_directory
from tests.support.stack.emulated import Emulated, clean_environment, command, emulated
from tests.support.stack.running import Place

Steps = dict[str, dict[str, Any]]

KEYS = {
    Cloud.E2B: {"E2B_API_KEY": "e2b_ffffffffffffffffffffffffffffffffffffffff"},
    Cloud.DAYTONA: {"DAYTONA_API_KEY": "dtn_wrong"},
    Cloud.MODAL: {"MODAL_TOKEN_ID": "ak-wrong", "MODAL_TOKEN_SECRET": "as-wrong"},
}


def doctor(env: Mapping[str, str], *words: str) -> tuple[int, Steps]:
    done = subprocess.run(
        command("doctor", "--json", *words),
        cwd=ROOT,
        env=dict(env),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=170,
        check=False,
    )
    assert done.stdout, done.stderr
    steps = {step["check"]: step for step in json.loads(done.stdout)["checks"]}
    failed = [s for s in steps.values() if s["level"] == "fail"]
    assert (done.returncode == 1) == bool(failed), done.stdout + done.stderr
    # whatever is wrong comes with what to do
    helpless = [s for s in steps.values() if s["level"] == "fail" and not s["advice"]]
    assert helpless == [], done.stdout
    return done.returncode, steps


async def examined(env: Mapping[str, str], name: Cloud) -> tuple[int, Steps]:
    """As `doctor --provider`, in this process: what its steps say is the same."""
    with mock.patch.dict(os.environ, env, clear=True):
        given = of_the_account(load_settings(), name)
    with mock.patch.dict(os.environ, given, clear=True):
        settings = AccountSettings()
    found = [asdict(step) async for step in examine(name, settings, box=False)]
    helpless = [s for s in found if s["level"] == "fail" and not s["advice"]]
    assert helpless == []
    code = 1 if any(step["level"] == "fail" for step in found) else 0
    return code, {step["check"]: step for step in found}


@contextlib.contextmanager
def answering(status: int, body: str) -> Iterator[str]:
    """A server that has one answer to everything."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.end_headers()
            self.wfile.write(body.encode())

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture(scope="module")
def clouds(sandbox_image: str) -> Iterator[tuple[dict[str, str], dict[Cloud, Emulated]]]:
    """All three, emulated, and what a stack that uses them has to have set."""
    if os.geteuid() != 0:
        missing("root", "boxes of emulators are entered by root only")
    with contextlib.ExitStack() as stack:
        home = stack.enter_context(short_directory())
        place = Place(home, free_port())
        env = {
            **place.environment,
            "HOLDFAST_GATEWAY_PORT": str(free_port()),
            "HOLDFAST_STORE_PORT": str(free_port(10_000)),
        }
        told = {
            name: stack.enter_context(emulated(name, "--image", sandbox_image, env=env))
            for name in Cloud
        }
        for each in told.values():
            env |= each.settings
        yield env, told


@pytest.mark.parametrize("name", list(Cloud))
async def test_without_a_key_it_says_which_to_set_and_asks_nobody(
    name: Cloud, tmp_path: Path
) -> None:
    code, steps = await examined(clean_environment(tmp_path), name)
    if name is Cloud.E2B:
        assert doctor(clean_environment(tmp_path), "--provider", name) == (code, steps)
    assert code == 1
    assert steps["SDK"]["level"] == "ok"
    assert steps["key"]["level"] == "fail"
    assert all(variable in steps["key"]["advice"] for variable in KEYS[name])
    assert "control plane" not in steps
    assert "HOLDFAST_GATEWAY_URL" in steps["model gateway"]["found"]
    assert "copied" in steps["store"]["found"]


@pytest.mark.parametrize("name", list(Cloud))
def test_without_its_sdk_it_says_how_to_install_it(name: Cloud, tmp_path: Path) -> None:
    (tmp_path / f"{name}.py").write_text("raise ImportError('it is not installed here')")
    done = subprocess.run(
        (sys.executable, "-P", "-m", "sidecar.doctor", name),
        env={**clean_environment(tmp_path), "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1
    assert "fail  SDK" in done.stdout
    assert f"--extra {name}" in done.stdout


@pytest.mark.parametrize("name", list(Cloud))
async def test_a_key_that_is_refused_is_told_from_a_cloud_that_is_away(
    name: Cloud, clouds: tuple[dict[str, str], dict[Cloud, Emulated]]
) -> None:
    env, _ = clouds
    code, steps = await examined({**env, **KEYS[name]}, name)
    assert code == 1
    assert "refuses the key" in steps["control plane"]["found"]
    assert "image" not in steps


@pytest.mark.parametrize("name", [Cloud.E2B, Cloud.DAYTONA])
async def test_an_image_that_is_not_there_is_told(
    name: Cloud, clouds: tuple[dict[str, str], dict[Cloud, Emulated]]
) -> None:
    env, _ = clouds
    wrong = {"HOLDFAST_E2B_TEMPLATE": "absent", "HOLDFAST_DAYTONA_SNAPSHOT": "absent"}
    code, steps = await examined({**env, **wrong}, name)
    assert code == 1
    assert steps["control plane"]["level"] == "ok"
    assert "there is no" in steps["image"]["found"]
    assert f"holdfast images build {name}" in steps["image"]["advice"]


async def test_what_answers_in_the_place_of_the_gateway_is_not_taken_for_it(
    tmp_path: Path,
) -> None:
    answers = [(200, "{}"), (404, "no such tunnel"), (401, "who are you")]
    for status, body in answers:
        with answering(status, body) as url:
            env = clean_environment(tmp_path, HOLDFAST_GATEWAY_URL=url)
            _, steps = await examined(env, Cloud.E2B)
        assert steps["model gateway"]["level"] == "fail", status
        assert str(status) in steps["model gateway"]["found"]


async def test_a_store_that_is_open_to_everybody_is_told(tmp_path: Path) -> None:
    with answering(200, "<ListBucketResult/>") as url:
        env = clean_environment(tmp_path, HOLDFAST_STORE_URL=url)
        code, steps = await examined(env, Cloud.E2B)
    assert code == 1
    assert "to anyone" in steps["store"]["found"]


def test_a_sandbox_needs_a_stack_that_runs(tmp_path: Path) -> None:
    done = subprocess.run(
        command("doctor", "--provider", "e2b", "--box"),
        cwd=ROOT,
        env=clean_environment(tmp_path),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1
    assert "error: the stack does not run" in done.stderr


@pytest.mark.parametrize(
    ("end", "told"),
    [("sys.exit(3)", "exit code 3"), ("os.kill(os.getpid(), 9)", "exit code -9")],
    ids=["exit", "killed"],
)
async def test_a_doctor_that_ends_without_a_failed_step_is_one(end: str, told: str) -> None:
    step = {"check": "SDK", "level": "ok", "found": "it is installed", "advice": ""}
    script = f"import os, sys; print({json.dumps(step)!r}); sys.stdout.flush(); {end}"
    steps = [each async for each in read_steps((sys.executable, "-c", script), {})]
    assert steps[0] == step
    assert [(each["check"], each["level"]) for each in steps[1:]] == [("doctor", "fail")]
    assert told in steps[1]["found"]
    assert steps[1]["advice"]


def test_what_an_sdk_does_at_the_end_of_the_interpreter_does_not_change_the_exit_code() -> None:
    script = (
        "import atexit, os; atexit.register(os.abort); print('said')\n"
        "from sidecar.exiting import exit_process; exit_process(0)"
    )
    done = subprocess.run(
        (sys.executable, "-c", script), cwd=ROOT, capture_output=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout) == (0, b"said\n"), done.stderr


async def test_what_an_sdk_prints_is_no_step_and_ends_nothing() -> None:
    step = {"check": "SDK", "level": "ok", "found": "it is installed", "advice": ""}
    script = f"print('a new version is there'); print({json.dumps(step)!r})"
    steps = [each async for each in read_steps((sys.executable, "-c", script), {})]
    assert [(each["level"], each["found"]) for each in steps] == [
        ("warn", "a new version is there"),
        ("ok", "it is installed"),
    ]


@pytest.fixture(scope="module")
def with_stack(
    clouds: tuple[dict[str, str], dict[Cloud, Emulated]], harness_dir: Path
) -> Iterator[dict[str, str]]:
    """The environment of a running stack that uses all clouds."""
    env, _ = clouds
    try:
        up = holdfast(env, "up", "--detach")
        assert up.returncode == 0, up.stderr
        yield env
    finally:
        down = holdfast(env, "down")
    assert down.returncode == 0, down.stderr


def holdfast(env: Mapping[str, str], *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(*words),
        cwd=ROOT,
        env=dict(env),
        capture_output=True,
        text=True,
        timeout=170,
        check=False,
    )


@pytest.mark.stack
@pytest.mark.parametrize("name", list(Cloud))
def test_a_sandbox_of_each_cloud_reaches_us_and_is_gone_at_the_end(
    name: Cloud, with_stack: dict[str, str]
) -> None:
    code, steps = doctor(with_stack, "--provider", name, "--box")
    assert code == 0, [step for step in steps.values() if step["level"] != "ok"]
    assert {step["level"] for step in steps.values()} == {"ok"}, steps
    expected = ["SDK", "key", "control plane", "image", "model gateway", "store"]
    expected += ["a sandbox", "from it: gateway", "from it: store", "workspace", "its end"]
    assert list(steps) == expected


@pytest.mark.stack
def test_while_the_stores_door_is_shut_no_sandbox_is_made(with_stack: dict[str, str]) -> None:
    shut = {**with_stack, "HOLDFAST_STORE_URL": f"{with_stack['HOLDFAST_GATEWAY_URL']}/elsewhere"}
    code, steps = doctor(shut, "--provider", "e2b", "--box")
    assert code == 1
    assert steps["store"]["level"] == "fail"
    assert steps["a sandbox"]["found"] == "not tried"
