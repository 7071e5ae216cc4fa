"""What a harness counts as knowing after its turn: never more than it was told."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from contracts import events
from contracts.bodies import RunRequest
from sidecar.runs import progress
from sidecar.runs.gateway import Gateway
from sidecar.runs.journal import Journal
from sidecar.runs.live import Live
from sidecar.runs.progress import Progress
from sidecar.runs.states import Native, StoredState
from sidecar.runs.turn import Turn
from tests.support.runs import request_of

INTERRUPTED = events.TurnInterrupted(error=events.ErrorInfo(code="harness_exited", message="m"))


class Parts:
    """A sandbox that lives, and the bucket of states."""

    def __init__(self) -> None:
        self.stored: list[Native] = []
        self.gateway = Gateway(Path("no.sock"))

    async def check_running(self, _: Live) -> None: ...

    async def pack(self, *_: object) -> bytes:
        return b"tar"

    async def put(self, request: RunRequest, native: Native, _: bytes) -> StoredState:
        self.stored.append(native)
        return StoredState(native, str(request.turn_id), "", 0, request.epoch, "")


@pytest.mark.parametrize(
    ("end", "epoch"),
    [
        (events.TurnCompleted(), 4),
        (events.TurnCancelled(), 4),
        (INTERRUPTED, 1),
        (events.TurnFailed(error=INTERRUPTED.error), 1),
    ],
)
async def test_a_turn_that_was_cut_off_leaves_the_harness_knowing_what_it_knew_before(
    tmp_path: Path, end: events.EventBase, epoch: int
) -> None:
    request = request_of(uuid4(), 4)
    journal = Journal.create(tmp_path, request)
    # Turns 2 and 3 were those of another harness, told with the prompt of turn 4.
    progress.save(journal, Progress(phase="prompting", sandbox_id="box", known_epoch=1))
    parts: Any = Parts()
    turn = Turn(journal, parts, parts, None, adopted=True)
    turn._sandbox, turn._acp_session = parts, "acp"
    turn._live = Live(request.session_id, "local", "box")
    await turn._capture(end)
    assert parts.stored == [Native("acp", epoch)]
    assert turn._live.natives == {"pi": Native("acp", epoch)}
    await parts.gateway.aclose()
