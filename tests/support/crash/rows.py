"""The rows of the crash-point table: where a sidecar dies in a turn, by what it leaves behind, and
what the next one must make of it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from contracts.bodies import RunRequest
from contracts.events import TURN_END_TYPES
from tests.support.crash.lives import Moment
from tests.support.crash.table import Row

SIDECAR = "sidecar"
NOT_WRITTEN = Row(SIDECAR, "before the request is written", "the api starts the turn again")
TORN_REQUEST = Row(SIDECAR, "in the line of the request", "set aside, the api starts it again")
NO_BOX = Row(SIDECAR, "before there is a sandbox", "adopted, carried out from the beginning")
BOX_UNKNOWN = Row(SIDECAR, "sandbox made, not noted", "adopted, another sandbox in its place")
OPENING = Row(SIDECAR, "sandbox noted, prompt not", "adopted, prompt sent")
NOT_SENT = Row(SIDECAR, "prompt noted, not sent", "adopted, interrupted after 30 s of doubt")
STREAMING = Row(SIDECAR, "prompt sent, no answer stored", "adopted, heard to its end")
SETTLING = Row(SIDECAR, "answer stored, receipt not", "adopted, settled anew")
PROVEN = Row(SIDECAR, "receipt written, end not", "adopted, the end is written")
ENDED = Row(SIDECAR, "end written", "nothing is left to do")


@dataclass(frozen=True)
class Left:
    """What a sidecar has left of a turn."""

    lines: list[dict[str, Any]] | None  # of its journal that are whole; None without a request
    progress: dict[str, Any] | None
    live: dict[str, Any] | None

    @classmethod
    def of(cls, moment: Moment, request: RunRequest) -> Left:
        journal = moment.files.get(f"data/runs/{request.turn_id}.ndjson")
        progress = moment.files.get(f"data/runs/{request.turn_id}.progress")
        live = moment.files.get(f"data/live/{request.session_id}.json")
        whole = journal.split(b"\n")[:-1] if journal else []
        return cls(
            [json.loads(line) for line in whole[1:]] if whole else None,
            json.loads(progress) if progress else None,
            json.loads(live) if live else None,
        )

    @property
    def types(self) -> list[str]:
        return [line["event"]["type"] for line in self.lines or ()]

    @property
    def end(self) -> dict[str, Any] | None:
        """The event that the turn has come down to, as far as that is on disk."""
        for line in self.lines or ():
            if line["event"]["type"] in TURN_END_TYPES:
                found: dict[str, Any] = line["event"]
                return found
        return self.progress["end"] if self.progress is not None else None


def row_of(moment: Moment, request: RunRequest, prompts_before: int) -> Row:
    left, outside = Left.of(moment, request), moment.outside
    if left.lines is None:
        exists = f"data/runs/{request.turn_id}.ndjson" in moment.files
        return TORN_REQUEST if exists else NOT_WRITTEN
    if left.end is not None and left.types[-1] == left.end["type"]:
        return ENDED
    if "receipt" in left.types:
        return PROVEN
    if left.end is not None:
        return SETTLING
    if left.progress is not None and left.progress["talk"]:
        return STREAMING if len(outside.prompts) > prompts_before else NOT_SENT
    if not outside.living():
        return NO_BOX
    return BOX_UNKNOWN if left.live is None else OPENING
