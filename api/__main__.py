"""`python -m api`: settings from the environment, then serve until SIGTERM or SIGINT."""

from __future__ import annotations

import socket
import sys

import uvicorn
from fastapi import FastAPI
from pydantic import ValidationError

from api.app import create_app
from api.settings import Settings, problems
from api.unread import hanging_up_after
from contracts import logs
from contracts.hardening import no_core_dumps
from contracts.redaction import Redactor, mask_logs, secrets_of
from contracts.secret_files import secret_files

# Streams end by themselves when the service closes; a request gets this long to finish.
GRACE_SECONDS = 10


class Server(uvicorn.Server):
    """Ends the followers first: uvicorn alone would wait for streams that never end."""

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        app = self.config.app
        if isinstance(app, FastAPI) and hasattr(app.state, "services"):
            app.state.services.listener.close()
        await super().shutdown(sockets)


def serve(settings: Settings, redactor: Redactor) -> Server:
    """The server, configured and not yet running."""
    return Server(
        uvicorn.Config(
            create_app(settings, redactor=redactor),
            host=settings.api_host,
            port=settings.api_port,
            log_config=None,
            # uvicorn's own line has the query, and the login link's query is the token
            access_log=False,
            server_header=False,
            http=hanging_up_after(settings.unread_seconds),
            ws="none",
            timeout_graceful_shutdown=GRACE_SECONDS,
        )
    )


def main() -> int:
    """The exit code."""
    no_core_dumps()
    try:
        settings = Settings(_secrets_dir=secret_files())
    except ValidationError as error:
        for problem in problems(error):
            sys.stderr.write(f"{problem}\n")
        return 2
    logs.configure("api", level=settings.log_level, form=settings.log_format)
    redactor = Redactor(secrets_of(settings))
    mask_logs(redactor)
    server = serve(settings, redactor)
    server.run()
    return 0 if server.started else 1


if __name__ == "__main__":
    sys.exit(main())
