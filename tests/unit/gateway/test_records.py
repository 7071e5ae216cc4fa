"""What the gateway notes of a session: read from anywhere, once, also after it was killed."""

from __future__ import annotations

import asyncio
import resource
import stat
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from contracts.bodies import Budget, Spent, Terms
from sidecar.gateway import records
from sidecar.gateway.records import Limits, Records, SessionLog


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "log.ndjson"


def kinds(log: SessionLog, after: int = 0) -> list[str]:
    return [record.kind for record in log.after(after).records]


def usage(tokens: int, cost: float | None = None) -> dict[str, Any]:
    return {"input_tokens": tokens, "output_tokens": 1, "cost": cost}


def test_records_are_read_from_any_id_and_forgotten_when_taken(path: Path) -> None:
    log = SessionLog.load(path)
    first, second, third = (log.add(kind, {}) for kind in "abc")
    assert first < second < third == log.last
    assert kinds(log, first) == ["b", "c"]
    log.taken(second)
    assert kinds(log) == ["c"]


def test_what_was_noted_and_not_taken_outlives_the_process(path: Path) -> None:
    log = SessionLog.load(path)
    first = log.add("a", {"n": 1})
    second = log.add("b", {"n": 2})
    log.taken(first)
    again = SessionLog.load(path)
    assert [(r.id, r.data) for r in again.after(0).records] == [(second, {"n": 2})]
    assert again.add("c", {}) > second
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_ids_grow_also_when_the_log_is_lost(path: Path) -> None:
    before = SessionLog.load(path).add("a", {})
    path.unlink()
    assert SessionLog.load(path).add("a", {}) > before


def test_a_torn_line_costs_that_line_alone(path: Path) -> None:
    log = SessionLog.load(path)
    log.add("a", {})
    with path.open("ab") as file:
        file.write(b'{"id": 7, "kind": "b", "da')
    again = SessionLog.load(path)
    again.add("c", {})
    assert kinds(again) == ["a", "c"]
    assert kinds(SessionLog.load(path)) == ["a", "c"]


def test_a_line_that_the_disk_has_no_room_for_does_not_spoil_the_next(path: Path) -> None:
    log = SessionLog.load(path)
    log.add("a", {})
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 10, hard))
    try:
        with pytest.raises(OSError, match="Errno"):
            log.add("b", {})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    log.add("c", {})
    assert kinds(SessionLog.load(path)) == ["a", "c"]


def test_a_request_that_was_on_its_way_when_the_gateway_died_is_said_to_be_lost(
    path: Path,
) -> None:
    log = SessionLog.load(path)
    done, _lost = log.began({"model": "m1"}), log.began({"model": "m2"})
    log.ended(done, ("usage", usage(1)))
    assert log.open == 1
    again = SessionLog.load(path)
    assert [(r.kind, r.data.get("model")) for r in again.after(0).records] == [
        ("usage", None),
        (records.CUT_OFF, "m2"),
    ]
    assert again.open == 0
    assert kinds(SessionLog.load(path)) == ["usage", records.CUT_OFF], "it is said once"


def test_terms_and_what_was_spent_outlive_the_process_and_what_was_taken(path: Path) -> None:
    turn = uuid4()
    log = SessionLog.load(path)
    log.agree(Terms(turn_id=turn, budget=Budget(tokens=100)))
    log.agree(Terms(spent=Spent(tokens=10, cost=0.5)))
    log.taken(log.add("usage", usage(4, 0.25)))
    log.add("usage", usage(6))
    for known in (log, SessionLog.load(path), SessionLog.load(path)):
        assert known.terms.turn_id == turn
        assert known.terms.budget == Budget(tokens=100)
        assert known.spent == Spent(tokens=10 + 5 + 7, cost=0.75)
    log.agree(Terms(budget=None, spent=Spent(tokens=3)))
    assert SessionLog.load(path).terms.budget is None
    assert SessionLog.load(path).terms.turn_id == turn
    assert SessionLog.load(path).spent.tokens == 22, "what is known of is never unspent"


def test_records_that_nobody_takes_are_dropped_at_a_bound_and_counted(path: Path) -> None:
    limits = Limits(records=10)
    log = SessionLog.load(path, limits)
    for _ in range(35):
        log.add("usage", usage(1))
    for known in (log, SessionLog.load(path, limits)):
        found = known.after(0).records
        assert len(found) <= 10
        dropped = sum(r.data["kinds"]["usage"] for r in found if r.kind == records.DROPPED)
        assert dropped + sum(r.kind == "usage" for r in found) == 35
        assert [r.id for r in found] == sorted({r.id for r in found})
        assert known.spent.tokens == 70


def test_a_log_does_not_grow_with_what_was_taken(path: Path) -> None:
    log = SessionLog.load(path, Limits(rewrite_bytes=2000))
    for _ in range(200):
        log.taken(log.add("usage", usage(1)))
    assert path.stat().st_size < 4000
    assert SessionLog.load(path).spent.tokens == 400


def test_a_record_that_is_too_big_is_cut(path: Path) -> None:
    log = SessionLog.load(path)
    log.add("a", {"text": "x" * records.MAX_DATA_BYTES})
    assert log.after(0).records[0].data == {"cut": True}


async def test_a_reader_waits_for_the_next_record(path: Path) -> None:
    log = SessionLog.load(path)
    waiting = asyncio.ensure_future(log.wait(log.last, 30))
    await asyncio.sleep(0)
    log.add("a", {})
    async with asyncio.timeout(10):
        assert [r.kind for r in (await waiting).records] == ["a"]
    assert (await log.wait(log.last, 0)).records == []


async def test_a_reader_waits_until_no_request_is_on_its_way(path: Path) -> None:
    log = SessionLog.load(path)
    request = log.began({})
    waiting = asyncio.ensure_future(log.wait(0, 30, idle=True))
    await asyncio.sleep(0)
    log.add("a", {})
    await asyncio.sleep(0)
    assert not waiting.done()
    log.ended(request, ("b", {}))
    async with asyncio.timeout(10):
        found = await waiting
    assert ([r.kind for r in found.records], found.open) == (["a", "b"], 0)


def test_nothing_stays_of_a_session_that_is_deleted(tmp_path: Path) -> None:
    kept, gone = uuid4(), uuid4()
    known = Records(tmp_path)
    for session_id in (kept, gone):
        known.add(session_id, "a", {})
    known.remove(gone)
    left = [file.stem for file in (tmp_path / records.DIRECTORY).iterdir()]
    assert left == [str(kept)]


def test_a_request_that_ends_after_its_session_was_deleted_leaves_nothing(tmp_path: Path) -> None:
    known, gone = Records(tmp_path), uuid4()
    log = known.of(gone)
    request = log.began({})
    known.remove(gone)
    log.ended(request, ("usage", usage(1)))
    assert list((tmp_path / records.DIRECTORY).iterdir()) == []
