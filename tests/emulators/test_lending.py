"""Ports that a container finds on its own loopback, and the words by which they are asked for."""

from __future__ import annotations

import asyncio
import secrets
import subprocess
from collections.abc import Iterator

import pytest

from emulators.__main__ import parse
from emulators.options import Way
from tests.emulators.conftest import Emulate
from tests.services import free_port

WITHIN = 30
PORT = 7001
ASKED = f"""
import urllib.request
print(urllib.request.urlopen("http://127.0.0.1:{PORT}/_emulator/faults", timeout=5).status)
"""


def docker_command(*argv: str, check: bool = True) -> str:
    done = subprocess.run(
        ["docker", *argv], capture_output=True, text=True, timeout=60, check=check
    )
    return done.stdout.strip()


@pytest.fixture
def client(sandbox_image: str, root: None) -> Iterator[tuple[str, str]]:
    """A container without a network, and its label."""
    label = f"holdfast.test={secrets.token_hex(4)}"
    made = docker_command(
        *("run", "--detach", "--network", "none", "--label", label),
        *("--entrypoint", "sleep", sandbox_image, "infinity"),
    )
    try:
        yield made, label
    finally:
        docker_command("rm", "--force", "--volumes", made)


async def served_in(container: str) -> None:
    """Returns when the emulator answers in there."""
    async with asyncio.timeout(WITHIN):
        asked = ("exec", container, "python3", "-c", ASKED)
        while await asyncio.to_thread(docker_command, *asked, check=False) != "200":
            await asyncio.sleep(0.1)


async def test_a_lent_port_is_on_the_loopback_of_the_container_also_after_its_restart(
    emulate: Emulate, client: tuple[str, str]
) -> None:
    container, label = client
    refused = docker_command("exec", container, "python3", "-c", ASKED, check=False)
    assert refused == "", "something answers there already"
    port = free_port()
    lend = ("--lend", f"{PORT}=127.0.0.1:{port}", "--lend-to", label)
    async with emulate("e2b", "--port", str(port), *lend):
        await served_in(container)
        await asyncio.to_thread(docker_command, "restart", "--time", "0", container)
        await served_in(container)


async def test_an_emulator_lends_to_a_container_that_comes_later_and_to_no_other(
    emulate: Emulate, client: tuple[str, str], sandbox_image: str
) -> None:
    other, label = client
    port = free_port()
    lend = ("--lend", f"{PORT}=127.0.0.1:{port}", "--lend-to", label, "holdfast.test.late")
    made = docker_command(
        *("create", "--network", "none", "--label", label, "--label", "holdfast.test.late"),
        *("--entrypoint", "sleep", sandbox_image, "infinity"),
    )
    try:
        async with emulate("e2b", "--port", str(port), *lend):
            await asyncio.to_thread(docker_command, "start", made)
            await served_in(made)
            assert docker_command("exec", other, "python3", "-c", ASKED, check=False) == ""
    finally:
        docker_command("rm", "--force", "--volumes", made)


def test_a_way_leads_to_the_same_port_of_loopback_or_where_it_says() -> None:
    assert Way.read("8790") == Way(8790, "127.0.0.1", 8790)
    assert Way.read("8790=gateway:80") == Way(8790, "gateway", 80)


@pytest.mark.parametrize("text", ["", "0", "65536", "80=", "80=gateway", "80=gateway:0", "a=b:1"])
def test_what_is_no_way_is_refused_and_named(text: str) -> None:
    with pytest.raises(ValueError, match=repr(text)):
        Way.read(text)


@pytest.mark.parametrize("half", [("--lend", "7001"), ("--lend-to", "a=b")])
def test_ports_are_lent_to_somebody(half: tuple[str, str]) -> None:
    with pytest.raises(SystemExit):
        parse(["e2b", *half])
