"""`python -m sidecar.gateway`"""

from __future__ import annotations

import contextlib
import resource
import sys

import uvicorn

from contracts import logs
from contracts.hardening import no_core_dumps
from contracts.redaction import Redactor, mask_logs, secrets_of
from contracts.secret_files import secret_files
from sidecar.gateway.control import control_app
from sidecar.gateway.settings import Settings
from sidecar.gateway.sockets import taking_over
from sidecar.sockets import is_served


def main() -> None:
    no_core_dumps()
    settings = Settings(_secrets_dir=secret_files())
    logs.configure("gateway", level=settings.log_level, form=settings.log_format)
    mask_logs(Redactor(secrets_of(settings)))
    if is_served(settings.gateway_control):
        sys.exit(f"Another gateway listens at {settings.gateway_control}: stop it first.")
    try:
        app = control_app(settings)
    except ValueError as error:
        sys.exit(str(error))
    config = uvicorn.Config(
        app,
        lifespan="on",
        log_config=None,
        access_log=False,
        timeout_graceful_shutdown=2,
    )
    # every tunnel of every session has two descriptors
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    settings.gateway_control.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(KeyboardInterrupt):
        uvicorn.Server(config).run(sockets=[taking_over(settings.gateway_control)])


if __name__ == "__main__":
    main()
