"""What needs privilege, as commands.

`python -m sidecar.boxhost stop-all`: end every box and mount of this data directory. The stack
calls it when it stops, and before it starts, to clear what a crash left behind.

`python -m sidecar.boxhost serve`: boxes and mounts for a sidecar without privilege, over the unix
socket HOLDFAST_BOXHOST. Whoever is PID 1 there must reap orphans (`init: true` in compose).
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

from pydantic import field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from contracts import logs
from contracts.hardening import no_core_dumps
from contracts.logs import LogFormat
from sidecar.boxhost import listening
from sidecar.boxhost.in_process import HostParts, OwnHost
from sidecar.boxhost.leftovers import stop_all
from sidecar.boxhost.service import Service


class Settings(BaseSettings):
    model_config = SettingsConfigDict(
        env_prefix="HOLDFAST_", frozen=True, extra="ignore", hide_input_in_errors=True
    )

    data_dir: Path
    run_dir: Path
    bwrap: Path


class ServeSettings(Settings):
    boxhost: Path
    boxhost_client_uid: int | None = None
    # Where boxes and mounts cannot outlive the service: in a container, which takes all with it.
    boxhost_ends_all: bool = False
    gateway_dir: Path
    harness_dir: Path
    node: Path
    weed: Path
    geesefs: Path | None = None
    filer: str
    s3_endpoint: str
    s3_bucket: str = "sessions"
    log_level: str = "info"
    log_format: LogFormat = "text"

    @field_validator("geesefs", "boxhost_client_uid", mode="before")
    @classmethod
    def _empty_is_none(cls, value: object) -> object:
        return None if value == "" else value


async def serve(settings: ServeSettings) -> None:
    host = OwnHost(
        HostParts(
            data_dir=settings.data_dir,
            run_dir=settings.run_dir,
            bwrap=settings.bwrap,
            harness_dir=settings.harness_dir,
            node=settings.node,
            weed=settings.weed,
            geesefs=settings.geesefs,
            filer=settings.filer,
            s3_endpoint=settings.s3_endpoint,
            bucket=settings.s3_bucket,
            client_uid=settings.boxhost_client_uid,
        )
    )
    await host.clear_leftovers()
    app = Service(host, settings.gateway_dir).app()
    await listening.serve(app, settings.boxhost, settings.boxhost_client_uid)
    if settings.boxhost_ends_all:
        await stop_all(settings.data_dir, settings.run_dir, settings.bwrap)


def main() -> None:
    match sys.argv[1:]:
        case ["stop-all"]:
            own = Settings()
            asyncio.run(stop_all(own.data_dir, own.run_dir, own.bwrap))
        case ["serve"]:
            no_core_dumps()
            settings = ServeSettings()
            logs.configure("box-host", level=settings.log_level, form=settings.log_format)
            os.umask(0o077)  # sockets, records: ours alone
            try:
                asyncio.run(serve(settings))
            except listening.Taken as error:
                sys.exit(str(error))
        case _:
            sys.exit("usage: python -m sidecar.boxhost stop-all|serve")


if __name__ == "__main__":
    main()
