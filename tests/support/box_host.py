"""A box-host as a process of its own, started by the real command."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from sidecar.boxhost.boxes import Boxes
from sidecar.boxhost.client import Patience, RemoteHost, connect
from sidecar.boxhost.mounts import Mounts
from tests.support.services import process


@dataclass(frozen=True)
class Place:
    """Where one box-host keeps its things, and what it is told of the rest."""

    home: Path
    bwrap: Path
    more: Mapping[str, str] = field(default_factory=dict)

    @property
    def data(self) -> Path:
        return self.home / "data"

    @property
    def run(self) -> Path:
        return self.home / "run"

    @property
    def socket(self) -> Path:
        return self.run / "box-host.sock"

    @property
    def gateway_dir(self) -> Path:
        return self.run / "gateway"

    @property
    def log(self) -> Path:
        return self.home / "box-host.log"

    @property
    def environment(self) -> dict[str, str]:
        nothing = self.home / "nothing"
        nothing.mkdir(exist_ok=True)
        return {
            "PATH": os.environ["PATH"],
            "HOLDFAST_DATA_DIR": str(self.data),
            "HOLDFAST_RUN_DIR": str(self.run),
            "HOLDFAST_BWRAP": str(self.bwrap),
            "HOLDFAST_BOXHOST": str(self.socket),
            "HOLDFAST_GATEWAY_DIR": str(self.gateway_dir),
            "HOLDFAST_HARNESS_DIR": str(nothing),
            "HOLDFAST_NODE": sys.executable,
            "HOLDFAST_WEED": "/nonexistent",
            "HOLDFAST_FILER": "127.0.0.1:1",
            "HOLDFAST_S3_ENDPOINT": "http://127.0.0.1:1",
            **self.more,
        }

    @contextlib.contextmanager
    def serving(self) -> Iterator[int]:
        """The service, for the time of the block; its pid."""
        argv = [sys.executable, "-m", "sidecar.boxhost", "serve"]
        with process(argv, self.log, self.environment, end=signal.SIGTERM) as child:
            yield child.pid

    async def stop_all(self) -> None:
        """End what it has left: boxes and mounts outlive it by design."""
        await Boxes(self.data, self.run, self.bwrap).stop_all()
        await Mounts(self.data).stop_all()


@contextlib.asynccontextmanager
async def served(place: Place) -> AsyncIterator[RemoteHost]:
    """A client of a service that runs for the time of the block."""
    try:
        with place.serving():
            # It starts within a second: no pause of the client has to be as long.
            async with connect(place.socket, Patience(longest_pause=0.1)) as host:
                yield host
    finally:
        await place.stop_all()
