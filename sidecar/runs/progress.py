"""How far a turn has come; beside its journal, so that the next sidecar can go on with it."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from sidecar.providers.base import SandboxProcess
from sidecar.record_files import read_record, was_set_aside, write_record
from sidecar.runs.journal import Journal


@dataclass(frozen=True)
class Talk:
    """A prompt that was sent, or was about to be."""

    server_id: str
    session: str
    request_id: str
    last_event_id: int  # of sandbox-agent's stream, before the prompt
    processes: tuple[SandboxProcess, ...]  # what ran in the sandbox before it


@dataclass(frozen=True)
class Progress:
    """`opening`: no prompt was sent. `prompting`: `talk` says how to hear the answer.
    `settling`: the answer is there, `end` is the event that it comes down to.
    `unknown`: the record could not be read. `cancelled` holds until the turn has ended.
    `known_epoch` is the last turn that the harness knew of before the prompt."""

    phase: Literal["opening", "prompting", "settling", "unknown"] = "opening"
    sandbox_id: str = ""
    talk: Talk | None = None
    end: dict[str, Any] | None = None
    cancelled: bool = False
    known_epoch: int = 0


def load(journal: Journal) -> Progress:
    """Raises: OSError."""
    found = read_record(_path(journal), _parse)
    if found is None:
        return Progress(phase="unknown" if was_set_aside(_path(journal)) else "opening")
    return found


def save(journal: Journal, progress: Progress) -> None:
    """Raises: OSError; then the record is as it was."""
    write_record(_path(journal), json.dumps(asdict(progress)))


def clear(journal: Journal) -> None:
    _path(journal).unlink(missing_ok=True)


def _path(journal: Journal) -> Path:
    return journal.path.with_suffix(".progress")


def _parse(record: dict[str, Any]) -> Progress:
    talk = record["talk"]
    if talk is not None:
        processes = tuple(
            SandboxProcess(p["token"], p["pid"], tuple(p["argv"])) for p in talk["processes"]
        )
        talk = Talk(**{**talk, "processes": processes})
    return Progress(**{**record, "talk": talk})
