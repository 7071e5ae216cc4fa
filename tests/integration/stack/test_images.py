"""`holdfast images build`: what a cloud makes sandboxes of, through the clouds' own SDKs."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from sidecar import images
from tests.support.paths import ROOT
from tests.support.requirements import missing
from tests.support.stack.emulated import clean_environment, command, emulated, processes_naming
from tests.support.stack.running import wait

BUILD_SECONDS = 120
SETTINGS = {
    "e2b": "HOLDFAST_E2B_TEMPLATE",
    "daytona": "HOLDFAST_DAYTONA_SNAPSHOT",
    "modal": "HOLDFAST_MODAL_IMAGE",
}
KEYS = {
    "e2b": ("E2B_API_KEY",),
    "daytona": ("DAYTONA_API_KEY",),
    "modal": ("MODAL_TOKEN_ID", "MODAL_TOKEN_SECRET"),
}


def build(name: str, env: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command("images", "build", name, "--json"),
        cwd=ROOT,
        env=dict(env),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=BUILD_SECONDS,
        check=False,
    )


class Here:
    """`python -m sidecar.images`, which `holdfast images build` runs, in the process of the test:
    the SDKs take seconds to import."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self._patch = monkeypatch
        self._capsys = capsys

    def build(self, name: str, env: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
        argv = ["images", name, "--checkout", str(ROOT)]
        with self._patch.context() as patch:
            patch.setattr(sys, "argv", argv)
            for variable in os.environ:
                patch.delenv(variable)
            for variable, value in env.items():
                patch.setenv(variable, value)
            code = images.main()
        said = self._capsys.readouterr()
        return subprocess.CompletedProcess(argv, code, said.out, said.err)


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Here:
    return Here(monkeypatch, capsys)


@pytest.fixture(scope="module", params=list(SETTINGS))
def cloud(
    request: pytest.FixtureRequest, sandbox_image: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[str, dict[str, str]]]:
    """An emulated one, and the environment of who has its key."""
    if os.geteuid() != 0:
        missing("root", "boxes of emulators are entered by root only")
    env = clean_environment(tmp_path_factory.mktemp("stack"))
    with emulated(request.param, "--image", sandbox_image, env=env) as told:
        yield request.param, {**env, **told.settings}


def test_a_second_build_makes_nothing_and_names_the_same(
    cloud: tuple[str, dict[str, str]], here: Here
) -> None:
    name, env = cloud
    first = build(name, env)
    assert first.returncode == 0, first.stderr
    made = json.loads(first.stdout)
    assert made["settings"].keys() == {SETTINGS[name]}
    again = here.build(name, {**env, **made["settings"]})
    assert again.returncode == 0, again.stderr
    assert json.loads(again.stdout) == made
    assert again.stderr == ""


def test_a_key_that_is_refused_is_said_and_not_shown(
    cloud: tuple[str, dict[str, str]], here: Here
) -> None:
    name, env = cloud
    wrong = dict.fromkeys(KEYS[name], "e2b_ffffffffffffffffffffffffffffffffffffffff")
    how = build if name == "e2b" else here.build
    done = how(name, {**env, **wrong})
    assert done.returncode == 1
    assert "error: " in done.stderr
    assert "hint: The key was refused." in done.stderr
    assert "Traceback" not in done.stderr
    assert "e2b_ffff" not in done.stdout + done.stderr


@pytest.mark.parametrize("name", list(SETTINGS))
def test_without_a_key_it_says_which_to_set(name: str, here: Here, tmp_path: Path) -> None:
    how = build if name == "e2b" else here.build
    done = how(name, clean_environment(tmp_path))
    assert done.returncode == 1
    assert all(key in done.stderr for key in KEYS[name])
    assert ".env" in done.stderr


@pytest.mark.parametrize("name", list(SETTINGS))
def test_without_its_sdk_it_says_how_to_install_it(name: str, tmp_path: Path) -> None:
    (tmp_path / f"{name}.py").write_text("raise ImportError('it is not installed here')")
    done = subprocess.run(
        (sys.executable, "-P", "-m", "sidecar.images", name, "--checkout", str(ROOT)),
        env={**clean_environment(tmp_path), "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=BUILD_SECONDS,
        check=False,
    )
    assert done.returncode == 1
    assert f"--extra {name}" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_key_goes_by_environment_never_on_a_command_line(tmp_path: Path) -> None:
    key = f"e2b_{os.urandom(20).hex()}"
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        env = clean_environment(
            tmp_path, E2B_API_KEY=key, E2B_API_URL=url, MODAL_TOKEN_SECRET="not for E2B"
        )
        process = subprocess.Popen(
            command("images", "build", "e2b"),
            cwd=ROOT,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            silent.settimeout(60)
            connection, _ = silent.accept()  # it is asking, and waits for the answer
            with connection:
                assert processes_naming(key) == []
                [builder] = children(process.pid)
                given = Path(f"/proc/{builder}/environ").read_bytes()
                assert f"E2B_API_KEY={key}".encode() in given
                assert b"MODAL_TOKEN_SECRET" not in given
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(60)
    wait(lambda: not Path(f"/proc/{builder}").exists(), 60)


def children(pid: int) -> list[int]:
    found = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [int(child) for child in found]
