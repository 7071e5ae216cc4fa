"""An embedded stack of a bench's own, with the scripted model."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from uuid import uuid4

from client import Holdfast
from sidecar.harnesses.registry import HARNESSES
from sidecar.runs.gateway import Gateway
from stack.embedded.layout import Layout
from stack.install.everything import Installed, find_everything
from stack.settings import load_settings
from tests.support.services import free_port

COMMAND_SECONDS = 180
CHUNK = 64 << 10
HOLDFAST = str(Path(sys.executable).with_name("holdfast"))


def chosen_harnesses(parser: argparse.ArgumentParser, names: str) -> list[str]:
    """The harnesses of `--harnesses`; ends the program for one that there is not."""
    harnesses = names.split(",")
    if unknown := set(harnesses) - set(HARNESSES):
        parser.error(f"there is no harness {', '.join(sorted(unknown))}")
    return harnesses


def found_without_keys(parser: argparse.ArgumentParser) -> Installed:
    """What the stack runs; ends the program where a real model would be asked."""
    os.environ |= {"ANTHROPIC_API_KEY": "", "OPENAI_API_KEY": ""}
    settings = load_settings()
    if settings.anthropic_api_key or settings.openai_api_key:
        parser.error("take the keys out of .env: this bench is for the scripted model")
    return find_everything(settings)


async def command(env: dict[str, str], *arguments: str) -> None:
    done = await asyncio.to_thread(
        subprocess.run,
        [HOLDFAST, *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=env,
        timeout=COMMAND_SECONDS,
        start_new_session=True,  # Ctrl-C is for the bench, which then stops the stack
        check=False,
    )
    if done.returncode != 0:
        raise RuntimeError(f"holdfast {' '.join(arguments)} failed:\n{done.stdout.decode()}")


@contextlib.asynccontextmanager
async def embedded_stack(
    layout: Layout, settings: Mapping[str, str] | None = None
) -> AsyncIterator[Holdfast]:
    this = asyncio.current_task()
    assert this is not None
    # As Ctrl-C does: the stack must not outlive us.
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, this.cancel)
    env = {
        **os.environ,
        "HOLDFAST_DATA_DIR": str(layout.data),
        "HOLDFAST_RUN_DIR": str(layout.run),
        "HOLDFAST_API_PORT": str(free_port()),
        "HOLDFAST_OFFLINE": "1",
        **(settings or {}),
    }
    up = asyncio.ensure_future(command(env, "up", "--detach"))
    try:
        await asyncio.shield(up)
        url = json.loads(layout.api.read_text())["url"]
        async with Holdfast(url, layout.token.read_text().strip()) as hf:
            yield hf
    finally:
        await asyncio.wait({up})  # a stack that is half up cannot be taken down
        await command(env, "down")
    assert str(layout.data) not in Path("/proc/mounts").read_text(), "a mount was left behind"


@contextlib.asynccontextmanager
async def model(control: Path) -> AsyncIterator[str]:
    """The stack's own gateway on a loopback port, as a box has it."""
    gateway, session = Gateway(control), str(uuid4())

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(CHUNK):
                writer.write(data)
                await writer.drain()
        writer.close()

    async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_unix_connection(socket)
        async with asyncio.TaskGroup() as both:
            both.create_task(pump(reader, far_writer))
            both.create_task(pump(far_reader, writer))

    async with contextlib.aclosing(gateway):
        socket = await gateway.open(session)
        server = await asyncio.start_server(carry, "127.0.0.1", 0)
        try:
            yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        finally:
            server.close()
            await gateway.close_session(session)
