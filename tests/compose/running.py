"""The stack of docker-compose.yml, unchanged, under a project name and a port of its own.

The images must be there: tests/compose/conftest.py builds them once.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import subprocess
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import IO, Any

from client import Holdfast
from contracts.errors import HoldfastError
from tests.support.paths import ROOT
from tests.support.services import free_port

UP_SECONDS = 600
COMMAND_SECONDS = 180
EMULATED = "docker/emulated.env"


@dataclass(frozen=True)
class Compose:
    project: str
    env: dict[str, str]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.env['HOLDFAST_API_PORT']}"

    async def run(
        self,
        *argv: str,
        within: float = COMMAND_SECONDS,
        stdin: IO[bytes] | int = subprocess.DEVNULL,
        stdout: IO[bytes] | int = subprocess.PIPE,
    ) -> str:
        """A command at the top of the checkout; what it said, unless that goes into a file."""
        process = await asyncio.create_subprocess_exec(
            *argv,
            cwd=ROOT,
            env=self.env,
            stdin=stdin,
            stdout=stdout,
            stderr=subprocess.PIPE,
        )
        try:
            async with asyncio.timeout(within):
                said, complained = await process.communicate()
        finally:
            if process.returncode is None:
                process.kill()
        assert process.returncode == 0, f"{argv}: {complained.decode()[-3000:]}"
        return (said or b"").decode()

    async def compose(self, *argv: str, **options: Any) -> str:
        return await self.run("docker", "compose", *argv, **options)

    async def up(self) -> None:
        await self.compose("up", "--no-build", "--detach", "--wait", within=UP_SECONDS)

    @property
    def emulated(self) -> bool:
        """Whether the commands of this project are given the profile `emulated`."""
        return self.env["COMPOSE_ENV_FILES"] == EMULATED

    async def come_back_emulated(self) -> None:
        """Start a stack that is down, now with docker/emulated.env as it stands."""
        self.env["COMPOSE_ENV_FILES"] = EMULATED
        await self.up()

    async def down(self, *options: str) -> None:
        await self.run("scripts/compose-down", *options)

    async def secret(self, name: str) -> str:
        said = await self.compose("exec", "-T", "api", "cat", f"/run/secrets/{name}")
        return said.strip()

    async def address(self, service: str, network: str) -> str:
        """Of a container of this stack: what is published nowhere can be asked by it."""
        container = (await self.compose("ps", "-q", service)).strip()
        path = f'(index .NetworkSettings.Networks "{self.project}_{network}").IPAddress'
        return (await self.run("docker", "inspect", "-f", f"{{{{{path}}}}}", container)).strip()

    async def left(self, kind: str, *options: str) -> list[str]:
        """Containers, networks or volumes of this project."""
        labels = [f"com.docker.compose.project={self.project}"]
        if kind == "container":
            # the images that compose builds have the label too, and so has what others make of them
            labels.append("com.docker.compose.oneoff")
        filters = [word for label in labels for word in ("--filter", f"label={label}")]
        return (await self.run("docker", kind, "ls", "-q", *options, *filters)).split()

    @contextlib.asynccontextmanager
    async def client(self) -> AsyncIterator[Holdfast]:
        async with Holdfast(self.url, await self.secret("holdfast_api_token")) as hf:
            async with asyncio.timeout(60):
                while True:
                    with contextlib.suppress(HoldfastError):
                        if (await hf.ready()).ready:
                            break
                    await asyncio.sleep(0.2)
            yield hf


@contextlib.asynccontextmanager
async def compose_project() -> AsyncIterator[Compose]:
    """A project with the scripted model, not up yet; nothing of it is left after the block."""
    project = f"holdfast-test-{secrets.token_hex(4)}"
    kept = ("PATH", "HOME", "DOCKER_CONFIG", "DOCKER_HOST")
    env = {name: os.environ[name] for name in kept if name in os.environ}
    env |= {
        "COMPOSE_PROJECT_NAME": project,
        "COMPOSE_ENV_FILES": "/dev/null",  # not .env: no key of a real model
        "HOLDFAST_API_PORT": str(free_port()),
    }
    stack = Compose(project, env)
    try:
        yield stack
    finally:
        await stack.down("--volumes")
