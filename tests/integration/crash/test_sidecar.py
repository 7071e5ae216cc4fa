"""A sidecar may die at every await and every write of a turn: the next one ends it, once."""

from __future__ import annotations

import hashlib
import itertools
import json
import pickle
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from contracts.bodies import PastTurn, RunRequest
from contracts.events import TURN_END_TYPES
from sidecar.workspace.manifest import Manifest
from tests.support.crash.lives import (
    BUCKET,
    STATE_BUCKET,
    Moment,
    Plan,
    put_back,
    run_full_life,
    run_life,
    watch_life,
)
from tests.support.crash.outside import Agents, Outside, disk_of
from tests.support.crash.rows import (
    BOX_UNKNOWN,
    ENDED,
    NO_BOX,
    NOT_SENT,
    NOT_WRITTEN,
    OPENING,
    PROVEN,
    SETTLING,
    STREAMING,
    TORN_REQUEST,
    Left,
    row_of,
)
from tests.support.crash.table import Row, Table
from tests.support.runs import request_of

SESSION = UUID(int=1)
UPLOAD = "upload.csv"
# Of the states of a life, every so many-th is died in when two die in a row.
SAMPLE = 5
NEXT = "the sidecar after it"
FULL = "nobody: the sidecar's disk full"
# More than a turn has.
MOST_WRITES = 200


def request(epoch: int) -> RunRequest:
    past = [
        PastTurn(
            turn_id=UUID(int=100 + n),
            epoch=n,
            harness="pi" if n == 1 else "codex",
            state="completed",
            prompt=f"prompt {n}",
        )
        for n in range(1, epoch)
    ]
    return request_of(SESSION, epoch).model_copy(
        update={
            "turn_id": UUID(int=100 + epoch),
            "prompt": f"prompt {epoch}",
            "past": past,
            "turns_before": len(past),
        }
    )


@dataclass(frozen=True)
class Scenario:
    """`end` is how the turn ends when nobody dies."""

    plan: Plan
    begin: Moment
    end: str

    @property
    def prompts_before(self) -> int:
        return len(self.begin.outside.prompts)

    @property
    def known_before(self) -> int:
        """The last turn that the harness knew of."""
        return min(self.plan.request.epoch - 1, 1)


def begin() -> Outside:
    """A user has put a file there before the session's first turn."""
    return Outside(objects={(BUCKET, f"{SESSION}/{UPLOAD}"): b"a,b\n"})


def after_first_turn(root: Path) -> Outside:
    outside = put_back(root, Moment(pickle.dumps(begin()), {}))
    run_life(root, outside, Plan(request(1)))
    outside.next_run()
    return outside


def scenario(name: str, root: Path) -> Scenario:
    root.mkdir()
    if name == "the first turn":
        return Scenario(Plan(request(1)), Moment.now(root, begin()), "completed")
    if name == "no sandbox is kept":
        plan = Plan(request(1), warm_seconds=0)
        return Scenario(plan, Moment.now(root, begin()), "completed")
    outside, end = after_first_turn(root), "completed"
    # Turn 2 was another harness's: the prompt of turn 3 tells of it.
    plan = Plan(request(3))
    if name == "a sandbox that is gone":
        for box in outside.living():
            box.lives = False
    elif name == "a cancelled turn":
        plan, end = replace(plan, cancel_after_prompts=2), "cancelled"
    elif name == "a harness that dies":
        outside.script, end = ("say", "write", "model", "die"), "interrupted"
    return Scenario(plan, Moment.now(root, outside), end)


ALWAYS = {NOT_WRITTEN, TORN_REQUEST, OPENING, NOT_SENT, STREAMING, SETTLING, PROVEN, ENDED}
# By name, with where else one can die in them.
SCENARIOS = {
    "the first turn": {NO_BOX, BOX_UNKNOWN},
    "a warm harness": set(),
    "a sandbox that is gone": {NO_BOX, BOX_UNKNOWN},
    "no sandbox is kept": {NO_BOX, BOX_UNKNOWN},
    "a cancelled turn": set(),
    "a harness that dies": set(),
}


def with_torn_lines(moments: list[Moment], request: RunRequest) -> Iterator[Moment]:
    """Each state, and before each line of the journal the state with a half of it."""
    name = f"data/runs/{request.turn_id}.ndjson"
    before = b""
    for moment in moments:
        journal = moment.files.get(name) or b""
        if len(journal) > len(before):
            torn = journal[: len(before) + (len(journal) - len(before)) // 2]
            yield Moment(moment.pickled, {**moment.files, name: torn})
            before = journal
        yield moment


def worlds_after(root: Path, died: Moment) -> Iterator[Outside]:
    """What the next sidecar meets: agents that have done nothing since the death, and if they had
    anything to do, agents that have."""
    yield put_back(root, died)
    if died.outside.busy:
        outside = put_back(root, died)
        Agents(outside, root / "disks").go_on()
        yield outside


def check(row: Row, died: Moment, now: Moment, case: Scenario) -> None:
    """All that must hold when the turn has ended after a death."""
    request, outside = case.plan.request, now.outside
    then, left = Left.of(died, request), Left.of(now, request)
    check_journal(left, outside)
    check_recovery(row, died, now, case)
    check_sandbox(left, outside, case)
    check_store(left, now)
    # the harness counts as knowing no more than it was told
    state = json.loads(outside.objects[STATE_BUCKET, f"{SESSION}/state/pi/latest.json"])
    told = left.types[-1] in ("turn.completed", "turn.cancelled")
    assert state["native"]["epoch"] == (request.epoch if told else case.known_before)
    if row is ENDED:
        assert left.lines == then.lines


def check_journal(left: Left, outside: Outside) -> None:
    """One end, one receipt, dense numbers, and the api has seen what is there."""
    assert left.lines is not None
    ends = [each for each in left.types if each in TURN_END_TYPES]
    assert left.types[-1:] == ends
    assert left.types.count("receipt") == 1
    assert [line["n"] for line in left.lines] == list(range(1, len(left.lines) + 1))
    assert [json.loads(line) for line in outside.shown] == left.lines
    assert left.progress is None


def check_recovery(row: Row, died: Moment, now: Moment, case: Scenario) -> None:
    """It did what the row says, and the prompt was sent once, or not when that is in doubt."""
    request, then, outside = case.plan.request, died.outside, now.outside
    left, noted = Left.of(now, request), Left.of(died, request).end
    end = "turn.interrupted" if row is NOT_SENT else f"turn.{case.end}"
    assert left.types[-1] == (end if noted is None else noted["type"])
    started = row in (NOT_WRITTEN, TORN_REQUEST)
    assert outside.started == then.started + started
    assert ("run.adopted" in left.types) >= (not started and row is not ENDED)
    sent = len(outside.prompts) - case.prompts_before
    decided = row is NOT_SENT or noted is not None
    assert sent == (len(then.prompts) - case.prompts_before if decided else 1)
    if decided and noted is None:
        assert left.lines is not None
        assert left.lines[-1]["event"]["error"]["code"] == "harness_exited"
    usage = outside.last_record - case.begin.outside.last_record
    assert left.types.count("usage") == usage


def check_sandbox(left: Left, outside: Outside, case: Scenario) -> None:
    """There is one, never were two, and it is nobody's: it runs, and its warm time does too."""
    assert outside.wrongs == []
    living = outside.living()
    assert len(living) == (1 if case.plan.warm_seconds else 0)
    assert not any(box.frozen for box in living)
    assert (left.live is not None) == bool(living)
    assert left.live is None or left.live["warm_until"] is not None


def check_store(left: Left, now: Moment) -> None:
    """It has what a user was told that it has, and all that the receipt covers, which is all that
    the sandbox has."""
    outside = now.outside
    stored = {
        key.removeprefix(f"{SESSION}/"): sha256(data)
        for (bucket, key), data in outside.objects.items()
        if bucket == BUCKET
    }
    assert stored[UPLOAD] == sha256(b"a,b\n")
    told = [line["event"] for line in left.lines or ()]
    receipt = next(event for event in told if event["type"] == "receipt")
    name = f"{SESSION}/manifests/{receipt['turn_id']}.json"
    document = outside.objects[STATE_BUCKET, name]
    assert sha256(document) == receipt["manifest_sha256"]
    covered = {e.path: e.sha256 for e in Manifest.parse(document).entries if e.kind == "file"}
    assert covered == stored
    for box in outside.living():
        disk = disk_of(Path("disks"), box).as_posix() + "/"
        assert stored == {
            name.removeprefix(disk): sha256(data)
            for name, data in now.files.items()
            if data is not None and name.startswith(disk)
        }


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def check_next_turn(row: Row, root: Path, outside: Outside, case: Scenario) -> None:
    """The session goes on, and its next prompt tells what the harness does not know."""
    outside.next_run()
    plan = Plan(request(case.plan.request.epoch + 1))
    now = run_life(root, outside, plan)
    assert Left.of(now, plan.request).types[-2:] == ["receipt", "turn.completed"]
    told = now.outside.prompts[-1]
    assert len(now.outside.prompts) == case.prompts_before + (1 if row is NOT_SENT else 2)
    for n in range(case.known_before + 1, plan.request.epoch):
        assert (f"prompt {n}" in told) == (row is NOT_SENT)


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_sidecar_dies_at_every_await_and_write(
    tmp_path: Path, name: str, record_property: Callable[[str, Any], None]
) -> None:
    root, table = tmp_path / "world", Table()
    case = scenario(name, root)
    undisturbed = watch_life(root, put_back(root, case.begin), case.plan)
    for died in with_torn_lines(undisturbed, case.plan.request):
        row, points = row_of(died, case.plan.request, case.prompts_before), died.points
        for outside in worlds_after(root, died):
            with table.died(row, points):
                check(row, died, run_life(root, outside, case.plan), case)
                if name == "a warm harness":
                    check_next_turn(row, root, outside, case)
            points = 0
    table.hand_over(record_property, ALWAYS | SCENARIOS[name])


@pytest.mark.parametrize("name", ["the first turn", "a cancelled turn"])
def test_the_next_sidecar_dies_as_well(
    tmp_path: Path, name: str, record_property: Callable[[str, Any], None]
) -> None:
    root, table = tmp_path / "world", Table()
    case = scenario(name, root)
    undisturbed = watch_life(root, put_back(root, case.begin), case.plan)
    for died in undisturbed[::SAMPLE]:
        second = watch_life(root, put_back(root, died), case.plan)
        for again in second[1::SAMPLE]:
            row = row_of(again, case.plan.request, case.prompts_before)
            with table.died(replace(row, who=NEXT), again.points):
                now = run_life(root, put_back(root, again), case.plan)
                check(row, again, now, case)
    table.hand_over(record_property)


@pytest.mark.parametrize("name", ["the first turn", "a warm harness"])
def test_the_disk_of_a_sidecar_is_full_from_every_write_on(
    tmp_path: Path, name: str, record_property: Callable[[str, Any], None]
) -> None:
    root, table = tmp_path / "world", Table()
    case = scenario(name, root)
    epoch = case.plan.request.epoch
    for at in itertools.count(1):
        assert at < MOST_WRITES
        outside = put_back(root, case.begin)
        disk = run_full_life(root, outside, case.plan, at)
        if disk.met is None:
            break
        where = row_of(disk.met, case.plan.request, case.prompts_before).where
        with table.died(Row(FULL, where, "one end, when there is room again"), 1):
            check_end_on_full_disk(Left.of(Moment.now(root, outside), case.plan.request), outside)
            outside.next_run()
            plan = Plan(request(epoch + 1))
            now = run_life(root, outside, plan)
            assert Left.of(now, plan.request).types[-2:] == ["receipt", "turn.completed"]
    met = {NOT_WRITTEN, OPENING, STREAMING, SETTLING, PROVEN} | SCENARIOS[name]
    table.hand_over(record_property, {replace(row, who=FULL) for row in met})


def check_end_on_full_disk(left: Left, outside: Outside) -> None:
    """One end, which the api has seen; at most one prompt was sent, and nobody is left frozen."""
    assert left.lines is not None
    assert [each for each in left.types if each in TURN_END_TYPES] == left.types[-1:]
    assert left.types.count("receipt") <= 1
    assert [line["n"] for line in left.lines] == list(range(1, len(left.lines) + 1))
    assert [json.loads(line) for line in outside.shown] == left.lines
    assert left.progress is None
    assert outside.started == 1
    assert outside.wrongs == []
    assert len(outside.living()) <= 1
    assert not any(box.frozen for box in outside.living())
