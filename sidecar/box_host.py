"""The host of boxes and mounts that the settings name."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

from sidecar.boxhost.contract import Host
from sidecar.boxhost.in_process import HostParts, OwnHost
from sidecar.settings import Settings


@contextlib.asynccontextmanager
async def box_host(settings: Settings) -> AsyncIterator[Host]:
    """Where boxes and mounts live: here, or with a box-host."""
    if settings.boxhost is not None:
        from sidecar.boxhost import client as boxhost  # its HTTP client is slow to import

        async with boxhost.connect(settings.boxhost) as service:
            yield service
        return
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
        )
    )
    await host.clear_half_made()
    yield host
