"""Truncated and empty records: found, damaged, and looked for in the log of whoever keeps them."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from tests.chaos.report import Violation

# Which service keeps a record.
KEPT_BY = {
    "progress": "sidecar",
    "journal": "sidecar",
    "live": "sidecar",
    "box-record": "sidecar",
    "mount-record": "sidecar",
    "uid": "sidecar",
    "gateway-log": "gateway",
}
# A log of lines goes on with those that can be read: what was lost of it is looked for elsewhere.
MADE_OF_LINES = ("journal", "gateway-log")


def find_record(kind: str, data_dir: Path, run_dir: Path, session_id: str) -> Path | None:
    """The session's newest record of this kind; None when there is none, or nothing in it."""
    if kind in ("progress", "journal"):
        found: Iterable[Path] = _of_turns(data_dir / "runs", session_id, kind)
    else:
        found = {
            "live": data_dir.glob(f"live/{session_id}.json"),
            "box-record": data_dir.glob(f"boxes/{session_id}*/box.json"),
            "mount-record": data_dir.glob(f"mounts/{session_id}.json"),
            "uid": data_dir.glob(f"uids/{session_id}"),
            "gateway-log": run_dir.glob(f"gateway/.records/{session_id}.ndjson"),
        }[kind]
    try:
        written = [path for path in found if path.stat().st_size > 0]
        return max(written, key=lambda path: path.stat().st_mtime_ns, default=None)
    except FileNotFoundError:  # its turn has just ended
        return None


def _of_turns(runs: Path, session_id: str, kind: str) -> list[Path]:
    journals = [path for path in runs.glob("*.ndjson") if _session_of(path) == session_id]
    if kind == "journal":
        return journals
    return [path for each in journals if (path := each.with_suffix(".progress")).exists()]


def _session_of(journal: Path) -> str:
    try:
        with journal.open("rb") as file:
            return str(json.loads(file.readline())["session_id"])
    except (OSError, ValueError, LookupError, TypeError):
        return ""


@dataclass(frozen=True)
class Damage:
    kind: str
    path: Path
    left: bytes  # what was left in it


def damage_record(kind: str, path: Path, part: float) -> Damage:
    """Cut a record to a part of it; of a log of lines, of its last 4 KiB. Raises: OSError."""
    size = path.stat().st_size
    tail = min(size, 4096) if kind in MADE_OF_LINES and part else size
    os.truncate(path, size - tail + int(tail * part))
    return Damage(kind, path, path.read_bytes())


def find_unreported(damages: list[Damage], logs: Path) -> list[Violation]:
    """Damaged records that were read or replaced without a word."""
    said = "".join(
        path.read_text(errors="replace") for path in logs.glob("*.log*") if path.is_file()
    )
    return [
        Violation("unreported", f"{damage.path} was damaged, and no log says so")
        for damage in damages
        if damage.kind not in MADE_OF_LINES
        and not _is_as_left(damage)
        and f"cannot read the record {damage.path}" not in said
    ]


def _is_as_left(damage: Damage) -> bool:
    """Nobody has looked at it so far."""
    try:
        return damage.path.read_bytes() == damage.left
    except FileNotFoundError:
        return False
