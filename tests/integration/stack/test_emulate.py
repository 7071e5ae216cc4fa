"""`holdfast emulate`: a cloud on this machine, and what to put into .env."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest

from stack.clouds import Cloud
from tests.support.paths import ROOT
from tests.support.stack.emulated import (
    ENDS_WITHIN,
    Emulated,
    clean_environment,
    command,
    emulated,
    processes_naming,
)
from tests.support.stack.running import wait
from tests.unit.repository.test_env_example import listed

NOT_ROOT = os.geteuid() != 0
pytestmark = pytest.mark.skipif(NOT_ROOT, reason="boxes of emulators are entered by root only")


def emulators_at(url: str) -> bool:
    """Whether anything listens there."""
    parts = urlsplit(url)
    with socket.socket() as probe:
        return probe.connect_ex((parts.hostname, parts.port)) == 0


@pytest.mark.parametrize("name", list(Cloud))
def test_it_says_which_settings_make_the_stack_use_it(
    name: Cloud, sandbox_image: str, tmp_path: Path
) -> None:
    env = clean_environment(tmp_path)
    with emulated(name, "--image", sandbox_image, env=env) as cloud:
        settings = cloud.settings
        assert set(settings) <= set(listed())
        assert cloud.told["url"] in settings.values()
        assert settings["HOLDFAST_GATEWAY_URL"].endswith(settings["HOLDFAST_GATEWAY_PORT"])
        assert settings["HOLDFAST_STORE_URL"].endswith(settings["HOLDFAST_STORE_PORT"])
        assert settings["HOLDFAST_STORE_PORT"] != settings["HOLDFAST_GATEWAY_PORT"]
        assert emulators_at(cloud.told["url"])
        assert cloud.end() == 0
        assert not emulators_at(cloud.told["url"])


PORTS = {"HOLDFAST_GATEWAY_PORT": "18790", "HOLDFAST_STORE_PORT": "18791"}


@pytest.fixture(scope="module")
def e2b(sandbox_image: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Emulated]:
    """For a stack that has ports already."""
    env = clean_environment(tmp_path_factory.mktemp("stack"), **PORTS)
    with emulated("e2b", "--image", sandbox_image, "--reach", "18792", env=env) as cloud:
        yield cloud


def test_the_key_that_it_says_is_the_one_that_is_accepted(e2b: Emulated) -> None:
    url = f"{e2b.settings['E2B_API_URL']}/v2/sandboxes"
    key = {"X-API-Key": e2b.settings["E2B_API_KEY"]}
    assert httpx.get(url, headers=key, trust_env=False).status_code == 200
    assert httpx.get(url, headers={"X-API-Key": "x"}, trust_env=False).status_code == 401


def test_ports_that_the_stack_has_already_are_the_ones_that_sandboxes_reach(e2b: Emulated) -> None:
    assert PORTS.items() <= e2b.settings.items()
    assert processes_naming("\0".join(("--reach", *PORTS.values(), "18792")))


def test_it_ends_when_its_command_is_killed(sandbox_image: str, tmp_path: Path) -> None:
    mark = f"18{os.getpid() % 1000:03}"
    env = clean_environment(tmp_path)
    with emulated("e2b", "--image", sandbox_image, "--reach", mark, env=env) as cloud:
        assert cloud.end(signal.SIGKILL) == -signal.SIGKILL
        wait(lambda: not emulators_at(cloud.told["url"]), ENDS_WITHIN)
        wait(lambda: not processes_naming(mark), ENDS_WITHIN)


def test_a_taken_port_is_said_and_is_exit_code_1(sandbox_image: str, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        done = subprocess.run(
            command("emulate", "e2b", "--image", sandbox_image, "--port", port),
            cwd=ROOT,
            env=clean_environment(tmp_path),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    assert done.returncode == 1
    assert "the e2b emulator cannot run" in done.stderr
    assert "hint: " in done.stderr
    assert "Traceback" not in done.stderr


def test_in_words_it_shows_lines_for_env_until_the_stack_has_them(
    sandbox_image: str, tmp_path: Path
) -> None:
    env = clean_environment(tmp_path)
    options = ("emulate", "daytona", "--image", sandbox_image)
    with emulated("daytona", "--image", sandbox_image, env=env) as first:
        port = str(urlsplit(first.told["url"]).port)
        settings = first.settings
    for given, expected in ((env, "Put this into .env"), ({**env, **settings}, "already")):
        process = subprocess.Popen(
            command(*options, "--port", port),
            cwd=ROOT,
            env=given,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            wait(lambda: emulators_at(settings["DAYTONA_API_URL"]), 60)
        finally:
            process.send_signal(signal.SIGTERM)
            said, _ = process.communicate(timeout=ENDS_WITHIN)
        assert process.returncode == 0
        assert expected in said
        assert "Daytona is emulated at" in said
        shown = {f"{name}={value}" for name, value in settings.items()} <= set(said.splitlines())
        assert shown == (given == env)
