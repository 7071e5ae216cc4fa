"""Modal: the control plane and the command router on one gRPC port, connect tokens and the control
of faults on one HTTP port. README.md says what is emulated."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any

from grpclib.server import Server

from emulators.boxes import Boxes
from emulators.faults import Faults, Faulty
from emulators.http_server import http_server, listening
from emulators.modal.control import Account, Control
from emulators.modal.images import Images
from emulators.modal.ports import Ports
from emulators.modal.router import Router
from emulators.modal.sandboxes import Sandboxes
from emulators.modal.wire import Tokens
from emulators.modal.work import Work
from emulators.options import Options, Ready
from emulators.rpc_faults import inject

# token id and token secret
DEFAULT_KEY = "ak-emulated:as-emulated"


@contextlib.asynccontextmanager
async def serve(options: Options, boxes: Boxes, faults: Faults) -> AsyncIterator[Ready]:
    """`options.api_key` is a token id and a token secret with a colon in between."""
    token_id, _, token_secret = (options.api_key or DEFAULT_KEY).partition(":")
    async with Work() as work:
        images, tokens = Images(), Tokens()
        sandboxes = Sandboxes(boxes, work)
        ports = Ports(options.host, work, images)
        control = Control(Account(token_id, token_secret), tokens, images, sandboxes, ports)
        server = Server([control, Router(sandboxes, tokens)])
        inject(server, faults, lambda request: _sandbox_of(request, sandboxes))
        proxy = Faulty(ports, faults, sandboxes, sandbox_of=ports.sandbox_of)
        async with http_server(proxy, options.host, options.control_port) as control_url:
            ports.url = control_url
            with listening(options.host, options.port) as listener:
                control.url = f"http://{options.host}:{listener.getsockname()[1]}"
                await server.start(sock=listener)
                try:
                    more = {"token_id": token_id, "token_secret": token_secret}
                    yield Ready(control.url, control_url, more)
                finally:
                    server.close()
                    await server.wait_closed()


def _sandbox_of(request: Any, sandboxes: Sandboxes) -> str | None:
    """Whatever names one: most requests by its id, a worker's by its task."""
    found = getattr(request, "sandbox_id", "") or sandboxes.id_of_task(
        getattr(request, "task_id", "") or getattr(getattr(request, "start", None), "task_id", "")
    )
    return found or None
