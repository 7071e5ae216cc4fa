"""The store as sandboxes in a cloud get to see it: the part of the embedded stack, by its own
command line."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from functools import partial

from stack.embedded.layout import Layout
from stack.embedded.ports import GRPC_OFFSET, StorePorts
from stack.embedded.seaweedfs import store_gate_part
from stack.install.binaries import find_weed
from stack.settings import Settings
from tests.support.services import SeaweedFS, free_port, process, short_directory, until_ready

STARTS_WITHIN = 60.0


@dataclass(frozen=True)
class Gate:
    url: str
    port: int
    pid: int


@contextlib.asynccontextmanager
async def store_gate(store_service: SeaweedFS, url: str | None = None) -> AsyncIterator[Gate]:
    """`url` is what it is known by outside."""
    with short_directory() as home:
        layout = Layout(home / "data", home / "run")
        layout.make()
        port = free_port(also=GRPC_OFFSET)
        settings = Settings(store_port=port, store_url=url)
        ports = StorePorts(**store_service.ports)
        part = store_gate_part(layout, find_weed(Settings()), ports, settings, {})
        assert part is not None
        assert part.prepare is not None
        await part.prepare()
        log = home / "log"
        with process(list(part.argv), log, dict(part.env)) as child:
            await until_ready(child, log, partial(part.is_ready, child.pid))
            yield Gate(f"http://127.0.0.1:{port}", port, child.pid)
