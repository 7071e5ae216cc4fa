"""Containers, as the engine's own command shows them."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any


def docker(*arguments: str) -> Any:
    told = subprocess.run(
        ["docker", *arguments], capture_output=True, text=True, timeout=60, check=True
    ).stdout
    return json.loads(told) if arguments[0] == "inspect" else told.split()


def containers_of(data_dir: Path) -> list[str]:
    """Containers of the stack with this directory, by the label that they all carry."""
    host = (data_dir / "mounts" / "host").read_text()
    found: list[str] = docker("ps", "-aq", "--filter", f"label=holdfast.stack={host}")
    return found
