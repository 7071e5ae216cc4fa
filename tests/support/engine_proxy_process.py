"""The engine proxy as a process."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from tests.support.engine_proxy import (
    STACK,
)

ENDS_WITHIN = 20


def environment(directory: Path) -> dict[str, str]:
    return {
        "PATH": os.environ["PATH"],
        "HOLDFAST_ENGINE_SOCKET": str(directory / "engine.sock"),
        "HOLDFAST_ENGINE_PROXY_LISTEN": str(directory / "own" / "proxy.sock"),
        "HOLDFAST_ENGINE_PROXY_BOXES": str(directory),
        "HOLDFAST_DOCKER_STACK": STACK,
        "HOLDFAST_DOCKER_MOUNTS_ROOT": "/m",
        "HOLDFAST_DOCKER_RUN_ROOT": "/r",
    }


@asynccontextmanager
async def proxy_process(directory: Path) -> AsyncIterator[asyncio.subprocess.Process]:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "sidecar.engine_proxy",
        env=environment(directory),
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await asyncio.wait_for(process.communicate(), ENDS_WITHIN)
