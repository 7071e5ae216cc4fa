"""`python -m sidecar.engine_proxy`"""

from __future__ import annotations

import asyncio
import signal
import sys

from contracts import logs
from contracts.hardening import no_core_dumps
from contracts.secret_files import secret_files
from sidecar.engine_proxy.server import serving
from sidecar.engine_proxy.settings import Settings
from sidecar.sockets import is_served


def main() -> None:
    no_core_dumps()
    settings = Settings(_secrets_dir=secret_files())
    logs.configure("engine-proxy", level=settings.log_level, form=settings.log_format)
    if is_served(settings.engine_proxy_listen):
        sys.exit(f"Another engine proxy listens at {settings.engine_proxy_listen}: stop it first.")
    asyncio.run(_serve(settings))


async def _serve(settings: Settings) -> None:
    stopped = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    async with serving(settings):
        await stopped.wait()


if __name__ == "__main__":
    main()
