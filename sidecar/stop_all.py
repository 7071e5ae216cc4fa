"""`python -m sidecar.stop_all`: end every sandbox and mount of this stack, wherever it is.

The stack calls it when it stops, and before it starts, to clear what a crash left behind.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys

from contracts.errors import SandboxError
from sidecar import vendors
from sidecar.box_host import box_host
from sidecar.boxhost import leftovers
from sidecar.providers.base import Provider
from sidecar.settings import Settings


async def stop_sandboxes(settings: Settings) -> int:
    """End what is not a box of this host; how many there were."""
    count = 0
    async with box_host(settings) as host, contextlib.AsyncExitStack() as stack:
        providers: list[Provider] = []
        if vendors.has_cloud(settings):
            providers += await vendors.clouds(settings, await host.mounts.name(), stack)
        if settings.docker_socket.exists():
            providers.append(await vendors.docker(settings, host, stack))
        for provider in providers:
            try:
                if await provider.trouble():
                    continue
                async for info in provider.list({}):
                    await provider.destroy(info.sandbox_id)
                    count += 1
            except SandboxError as error:
                sys.stdout.write(f"{provider.name}: sandboxes may be left: {error.message}\n")
    return count


async def main() -> None:
    settings = Settings()
    sandboxes = await stop_sandboxes(settings)
    if sandboxes:
        sys.stdout.write(f"ended {sandboxes} sandboxes\n")
    await leftovers.stop_all(settings.data_dir, settings.run_dir, settings.bwrap)


if __name__ == "__main__":
    asyncio.run(main())
