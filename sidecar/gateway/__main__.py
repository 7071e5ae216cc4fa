"""`python -m sidecar.gateway`"""

from __future__ import annotations

import contextlib
import resource
import sys

from contracts import logs
from contracts.hardening import no_core_dumps
from contracts.redaction import Redactor, mask_logs, secrets_of
from contracts.secret_files import secret_files
from sidecar.gateway.server import ControlSocketTaken, GatewayServer
from sidecar.gateway.settings import Settings


def main() -> None:
    no_core_dumps()
    settings = Settings(_secrets_dir=secret_files())
    logs.configure("gateway", level=settings.log_level, form=settings.log_format)
    mask_logs(Redactor(secrets_of(settings)))
    # every tunnel of every session has two descriptors
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    try:
        server = GatewayServer(settings)
        with contextlib.suppress(KeyboardInterrupt):
            server.run()
    except (ControlSocketTaken, ValueError) as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
