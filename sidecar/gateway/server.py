"""The gateway's server: what `python -m sidecar.gateway` runs until it is told to stop."""

from __future__ import annotations

import uvicorn

from sidecar.gateway.control import control_app
from sidecar.gateway.settings import Settings
from sidecar.gateway.sockets import taking_over
from sidecar.sockets import is_served


class ControlSocketTaken(Exception):
    """Another gateway serves the control socket."""


class GatewayServer:
    """The control API and, for as long as it runs, the sessions' sockets and the port for clouds.

    Several can run in one process, each in a thread of its own: none touches anything that belongs
    to the process.
    """

    def __init__(self, settings: Settings) -> None:
        """Raises: ValueError, when the prices that are named cannot be read."""
        self._settings = settings
        self._server = uvicorn.Server(
            uvicorn.Config(
                control_app(settings),
                lifespan="on",
                log_config=None,
                access_log=False,
                timeout_graceful_shutdown=2,
            )
        )

    @property
    def started(self) -> bool:
        """Whether it answers."""
        return self._server.started

    def run(self) -> None:
        """Serve until `stop`, or until a signal in the main thread.

        Raises: ControlSocketTaken.
        """
        control = self._settings.gateway_control
        if is_served(control):
            raise ControlSocketTaken(f"Another gateway listens at {control}: stop it first.")
        control.parent.mkdir(parents=True, exist_ok=True)
        self._server.run(sockets=[taking_over(control)])

    def stop(self) -> None:
        """Make `run` return; from any thread."""
        self._server.should_exit = True
