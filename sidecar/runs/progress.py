"""How far a turn has come; beside its journal, so that the next sidecar can go on with it."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from contracts.events import Resume
from sidecar.providers.base import SandboxProcess
from sidecar.record_files import read_record, was_set_aside, write_record
from sidecar.runs.journal import Journal

JOURNAL_SUFFIX, RECORD_SUFFIX, MARK_SUFFIX = ".ndjson", ".progress", ".ended"
RESUME = str(Resume.model_fields["type"].default)


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
    `unknown`: the record could not be read. `ended`: the turn is over, whatever its journal says.
    `cancelled` holds until the turn has ended.
    `known_epoch` is the last turn that the harness knew of before the prompt. `lines` is how many
    lines the journal had when this was written."""

    phase: Literal["opening", "prompting", "settling", "unknown", "ended"] = "opening"
    sandbox_id: str = ""
    talk: Talk | None = None
    end: dict[str, Any] | None = None
    cancelled: bool = False
    known_epoch: int = 0
    lines: int = 0


def load(journal: Journal) -> Progress:
    """Raises: OSError."""
    if _mark(journal).exists():
        return Progress(phase="ended")
    found = read_record(_path(journal), _parse)
    if found is None:
        # The first record is written before the harness is told anything.
        lost = was_set_aside(_path(journal)) or journal.has(RESUME)
        return Progress(phase="unknown" if lost else "opening")
    return found


def save(journal: Journal, progress: Progress) -> None:
    """Raises: OSError; then the record is as it was."""
    write_record(_path(journal), json.dumps(asdict(replace(progress, lines=journal.last_n))))


def mark_ended(journal: Journal) -> None:
    """The turn is over: without its end in the journal it must not begin anew. Raises: OSError."""
    try:
        _path(journal).replace(_mark(journal))  # a full disk takes this
    except FileNotFoundError:
        _mark(journal).touch()


def remove_record(journal: Journal) -> None:
    for path in (_path(journal), _mark(journal)):
        path.unlink(missing_ok=True)


def remove_orphans(directory: Path) -> None:
    """What a journal that was removed or set aside has left."""
    for suffix in (RECORD_SUFFIX, MARK_SUFFIX):
        for path in directory.glob(f"*{suffix}"):
            if not path.with_suffix(JOURNAL_SUFFIX).exists():
                path.unlink(missing_ok=True)


def _path(journal: Journal) -> Path:
    return journal.path.with_suffix(RECORD_SUFFIX)


def _mark(journal: Journal) -> Path:
    return journal.path.with_suffix(MARK_SUFFIX)


def _parse(record: dict[str, Any]) -> Progress:
    talk = record["talk"]
    if talk is not None:
        processes = tuple(
            SandboxProcess(p["token"], p["pid"], tuple(p["argv"])) for p in talk["processes"]
        )
        talk = Talk(**{**talk, "processes": processes})
    return Progress(**{**record, "talk": talk})
