"""`python -m sidecar`: serve on HOLDFAST_SIDECAR_LISTEN, `unix:/path` or `host:port`."""

from __future__ import annotations

import contextlib
import os
import socket
import sys

import uvicorn
from fastapi import FastAPI

from contracts import logs
from contracts.hardening import no_core_dumps
from contracts.redaction import Redactor, mask_logs, secrets_of
from contracts.secret_files import secret_files
from sidecar.app import create_app
from sidecar.settings import Settings

# Streams end by themselves when the sidecar stops; a request gets this long to finish.
STOP_SECONDS = 30


class Server(uvicorn.Server):
    """Ends the streams first: uvicorn alone would wait for a turn that runs."""

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        app = self.config.app
        if isinstance(app, FastAPI) and hasattr(app.state, "runs"):
            await app.state.runs.release_followers()
        await super().shutdown(sockets)


def main() -> None:
    no_core_dumps()
    settings = Settings(_secrets_dir=secret_files())
    logs.configure("sidecar", level=settings.log_level, form=settings.log_format)
    redactor = Redactor(secrets_of(settings))
    mask_logs(redactor)
    os.umask(0o077)  # sockets, journals, records: ours alone
    try:
        app = create_app(settings, redactor)
    except ValueError as error:
        sys.exit(f"sidecar: {error}")
    listen = settings.sidecar_listen
    host, _, port = listen.rpartition(":")
    path = listen.removeprefix("unix:") if listen.startswith("unix:") else None
    server = Server(
        uvicorn.Config(
            app,
            uds=path,
            host=host if path is None else "127.0.0.1",
            port=int(port) if path is None else 0,
            log_config=None,
            access_log=False,
            timeout_graceful_shutdown=STOP_SECONDS,
        )
    )
    with contextlib.suppress(KeyboardInterrupt):
        server.run()
    sys.exit(not server.started)


if __name__ == "__main__":
    main()
