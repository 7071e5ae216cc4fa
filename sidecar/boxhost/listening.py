"""The service's socket: one service at a time, and one caller's user."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
from pathlib import Path

from aiohttp import web

from sidecar.sockets import is_served, private_socket

log = logging.getLogger(__name__)

STOP_SECONDS = 5


class Taken(Exception):
    """Another service listens at the socket."""


async def serve(app: web.Application, path: Path, client_uid: int | None) -> None:
    """Until SIGTERM or SIGINT. Boxes and mounts stay as they are.

    Raises: Taken.
    """
    listener = listener_for(path, client_uid)
    runner = web.AppRunner(
        app, access_log=None, handler_cancellation=True, shutdown_timeout=STOP_SECONDS
    )
    await runner.setup()
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    try:
        await web.SockSite(runner, listener).start()
        log.info("the box-host listens at %s", path)
        await stop.wait()
    finally:
        await runner.cleanup()


def listener_for(path: Path, client_uid: int | None) -> socket.socket:
    """A socket that only we, or `client_uid`, can connect to.

    Raises: Taken.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    if is_served(path):
        raise Taken(f"another box-host listens at {path}: stop it first")
    path.unlink(missing_ok=True)
    listener = private_socket(path)
    if client_uid is not None:
        os.chown(path, client_uid, client_uid)
    return listener
