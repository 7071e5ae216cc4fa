"""Ports of the host that are lent to containers."""

from __future__ import annotations

import asyncio
import secrets
import subprocess
from collections.abc import Iterator

import pytest

from tests.support.emulators.fixtures import Emulate
from tests.support.services import free_port

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
