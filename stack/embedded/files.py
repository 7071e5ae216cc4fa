"""Small files that are whole or absent, and private from the first byte."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any


def write_private(path: Path, content: str) -> None:
    """Replace `path` by a file that only we can read."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        os.fchmod(handle, 0o600)
        file.write(content)
    draft.replace(path)


def write_json(path: Path, value: Any) -> None:
    write_private(path, json.dumps(value, indent=1) + "\n")


def read_json(path: Path) -> Any:
    """The file's content, or None when it is missing or damaged."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
