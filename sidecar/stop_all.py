"""`python -m sidecar.stop_all`: end every container, box and mount of this stack.

The stack calls it when it stops, and before it starts, to clear what a crash left behind.
"""

from __future__ import annotations

import asyncio
import sys

from contracts.errors import Unreachable
from sidecar.app import box_host, docker_host
from sidecar.boxhost import __main__ as boxhost
from sidecar.providers.docker import DockerProvider
from sidecar.settings import Settings


async def stop_containers(settings: Settings) -> int:
    """How many there were. Without an engine there are none."""
    if not settings.docker_socket.exists():
        return 0
    count = 0
    async with (
        box_host(settings) as host,
        DockerProvider.open(await docker_host(settings, host)) as docker,
    ):
        try:
            async for info in docker.list({}):
                await docker.destroy(info.sandbox_id)
                count += 1
        except Unreachable as error:
            sys.stdout.write(f"containers may be left: {error.message}\n")
    return count


async def main() -> None:
    containers = await stop_containers(Settings())
    if containers:
        sys.stdout.write(f"ended {containers} containers\n")
    await boxhost.stop_all(boxhost.Settings())


if __name__ == "__main__":
    asyncio.run(main())
