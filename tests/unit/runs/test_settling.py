"""How a turn is settled by a sidecar that adopts it: one receipt, one end, and a harness that is
not believed to know a turn that was cut off."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any, cast
from uuid import UUID, uuid4

import pytest

from contracts import events
from contracts.bodies import GatewayRecords, RunRequest
from contracts.errors import SandboxGone
from sidecar.runs import progress
from sidecar.runs.journal import Journal
from sidecar.runs.live import Live
from sidecar.runs.progress import Progress, Talk
from sidecar.runs.states import Native, StoredState
from sidecar.runs.turn import Turn
from sidecar.workspace.barrier import Proof
from tests.support.runs import request_of

RECEIPT = events.Receipt(engine="weed", files=1, bytes=2, manifest_sha256="0" * 64, took=0.1)
INTERRUPTED = events.TurnInterrupted(error=events.ErrorInfo(code="harness_exited", message="m"))
FAILED = events.TurnFailed(error=events.ErrorInfo(code="turn_limit", message="m"))
TALK = Talk(server_id="srv", session="acp-1", request_id="r", last_event_id=0, processes=())


class QuietGateway:
    async def records(self, session_id: UUID, after: int, **_: Any) -> GatewayRecords:
        return GatewayRecords(records=[], last=after)

    async def taken(self, session_id: UUID, upto: int) -> None: ...


class ProvenWorkspace:
    def __init__(self) -> None:
        self.proven = 0

    async def barrier(self, turn_id: str, epoch: int, held: object = None) -> Proof:
        self.proven += 1
        return Proof("weed", 1, 2, "0" * 64, 0.1)


class Box:
    """As much of a DurableSandbox as settling needs."""

    id = "box"
    remounted = False

    def __init__(self, workspace: ProvenWorkspace) -> None:
        self.workspace = workspace

    @contextlib.asynccontextmanager
    async def frozen(self) -> AsyncIterator[None]:
        yield

    async def pack(self, kept: Sequence[str], left: Sequence[str]) -> bytes:
        return b"tar"

    async def held(self) -> set[int]:
        return set()


class OneBox:
    """Sandboxes, of which there is one, or none any more."""

    def __init__(self, *, lives: bool) -> None:
        self.gateway = QuietGateway()
        self.left = ProvenWorkspace()
        self.kept: Live
        self._lives = lives
        self._lock = asyncio.Lock()

    def lock(self, session_id: UUID) -> asyncio.Lock:
        return self._lock

    async def rejoin(self, request: RunRequest, sandbox_id: str, emit: Any) -> tuple[Box, Live]:
        if not self._lives:
            raise SandboxGone("gone", op="attach")
        return Box(self.left), Live(request.session_id, "local", sandbox_id)

    async def workspace(self, request: RunRequest) -> ProvenWorkspace:
        return self.left

    async def check_running(self, live: Live) -> None: ...

    async def keep_warm(self, live: Live, emit: Any) -> None:
        self.kept = live

    def engine(self, provider: str) -> Any:
        return type("E", (), {"name": "weed"})

    def sync_seconds(self, live: Live) -> None: ...


class KeptStates:
    def __init__(self) -> None:
        self.put_as: list[Native] = []

    async def put(self, request: RunRequest, native: Native, tar: bytes) -> StoredState:
        self.put_as.append(native)
        return StoredState(native, str(request.turn_id), "0" * 64, len(tar), request.epoch, "state")


async def adopt(journal: Journal, boxes: OneBox, states: KeptStates) -> list[str]:
    """Run the turn from where its record says it is; the types of all its events."""
    turn = Turn(journal, cast(Any, boxes), cast(Any, states), None, adopted=True)
    async with asyncio.timeout(20):
        await turn.run()
    return [entry.event["type"] for entry in journal.entries()]


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    request = request_of(uuid4()).model_copy(update={"epoch": 7})
    return Journal.create(tmp_path, request)


@pytest.mark.parametrize("lives", [True, False], ids=["box lives", "box is gone"])
@pytest.mark.parametrize("end", [events.TurnCompleted(), INTERRUPTED], ids=lambda end: end.type)
async def test_a_crash_between_receipt_and_end_costs_no_second_receipt(
    journal: Journal, end: events.EventBase, lives: bool
) -> None:
    await journal.append(RECEIPT)
    settling = Progress("settling", "box", TALK, events.to_dict(end))
    progress.save(journal, settling)
    boxes = OneBox(lives=lives)
    told = await adopt(journal, boxes, KeptStates())
    assert told.count("receipt") == 1
    assert told[-1] == events.to_dict(end)["type"]
    assert boxes.left.proven == 0


async def test_a_crash_between_receipt_and_end_does_not_forget_what_the_harness_knows(
    journal: Journal,
) -> None:
    """Its next turn would be told of this one and of all since its last."""
    await journal.append(events.StateCaptured(harness="pi", bytes=3, took=0.1))
    await journal.append(RECEIPT)
    end = events.to_dict(events.TurnCompleted())
    progress.save(journal, Progress("settling", "box", TALK, end, known_epoch=4))
    boxes = OneBox(lives=True)
    await adopt(journal, boxes, KeptStates())
    assert boxes.kept.natives == {"pi": Native("acp-1", 7)}


@pytest.mark.parametrize("lost", [0, 2])
async def test_lines_that_the_journal_lost_before_the_turn_settled_are_missed(
    journal: Journal, lost: int
) -> None:
    for text in ("one", "two", "three"):
        await journal.append(events.Message(role="assistant", text=text))
    end = events.to_dict(events.TurnCompleted())
    progress.save(journal, Progress("settling", "box", TALK, end))
    lines = journal.path.read_bytes().splitlines(keepends=True)
    journal.path.write_bytes(b"".join(lines[: len(lines) - lost]))
    again = Journal.load(journal.path)
    told = await adopt(again, OneBox(lives=True), KeptStates())
    assert told.count("run.gap") == bool(lost)
    gaps = [e.event["lines"] for e in again.entries() if e.event["type"] == "run.gap"]
    assert gaps == [lost][:lost]


async def test_a_turn_that_has_ended_is_not_begun_anew_when_its_journal_lost_the_end(
    journal: Journal,
) -> None:
    end = events.to_dict(events.TurnCompleted())
    progress.save(journal, Progress("settling", "box", TALK, end))
    boxes = OneBox(lives=True)
    assert (await adopt(journal, boxes, KeptStates()))[-2:] == ["receipt", "turn.completed"]
    lines = journal.path.read_bytes().splitlines(keepends=True)
    journal.path.write_bytes(b"".join(lines[:2]))
    again = Journal.load(journal.path)
    told = await adopt(again, boxes, KeptStates())
    assert told == ["run.adopted", "turn.interrupted"]
    assert boxes.left.proven == 1, "another manifest would not be the receipt's"
    (last,) = [entry.event for entry in again.entries() if entry.n == again.last_n]
    assert last["error"]["code"] == "stream_gap"
    progress.remove_record(again)
    assert list(journal.path.parent.iterdir()) == [journal.path]


async def test_a_prompt_that_may_have_been_sent_is_not_sent_again_when_its_record_is_gone(
    journal: Journal,
) -> None:
    assert progress.load(journal).phase == "opening"
    await journal.append(events.Resume(rung="handoff"))
    assert progress.load(journal).phase == "unknown"


async def test_a_crash_before_the_receipt_is_settled_once_more(journal: Journal) -> None:
    end = events.TurnCompleted()
    progress.save(journal, Progress("settling", "box", TALK, events.to_dict(end)))
    told = await adopt(journal, OneBox(lives=True), KeptStates())
    assert told.count("receipt") == 1
    assert told[-1] == end.type


@pytest.mark.parametrize(
    ("end", "knows"),
    [
        (events.TurnCompleted(), 7),
        (events.TurnCancelled(reason="asked"), 7),
        (INTERRUPTED, 4),
        (FAILED, 4),
    ],
    ids=lambda each: getattr(each, "type", str(each)),
)
async def test_a_turn_that_was_cut_off_is_told_to_whoever_comes_next(
    journal: Journal, end: events.EventBase, knows: int
) -> None:
    """What the harness is stored as knowing is what its next briefing leaves out."""
    settling = Progress("settling", "box", TALK, events.to_dict(end), known_epoch=4)
    progress.save(journal, settling)
    states = KeptStates()
    await adopt(journal, OneBox(lives=True), states)
    assert states.put_as == [Native("acp-1", knows)]
