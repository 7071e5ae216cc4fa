"""How far a turn has come; beside its journal, so that the next sidecar can go on with it."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from sidecar.providers.base import SandboxProcess
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
    `settling`: the answer is there, `end` is the event that it comes down to."""

    phase: Literal["opening", "prompting", "settling"] = "opening"
    sandbox_id: str = ""
    talk: Talk | None = None
    end: dict[str, Any] | None = None


def load(journal: Journal) -> Progress:
    try:
        record = json.loads(_path(journal).read_text())
    except FileNotFoundError:
        return Progress()
    talk = record["talk"]
    if talk is not None:
        processes = tuple(
            SandboxProcess(p["token"], p["pid"], tuple(p["argv"])) for p in talk["processes"]
        )
        record["talk"] = Talk(**{**talk, "processes": processes})
    return Progress(**record)


def save(journal: Journal, progress: Progress) -> None:
    new = _path(journal).with_suffix(".new")
    new.write_text(json.dumps(asdict(progress)))
    new.rename(_path(journal))


def clear(journal: Journal) -> None:
    _path(journal).unlink(missing_ok=True)


def _path(journal: Journal) -> Path:
    return journal.path.with_suffix(".progress")
