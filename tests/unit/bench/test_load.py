"""bench.load: what it would call lost, and that a small load of it loses nothing."""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime
from uuid import uuid4

import pytest

from bench.load_followers import Follower, Seen, check_stored
from bench.load_watch import Sample, Watch
from stack.embedded.layout import Layout
from tests.support.services import short_directory

SESSION = uuid4()


def line(seq: int, text: str = "", kind: str = "message") -> bytes:
    event = {"seq": seq, "at": datetime.now(UTC).isoformat(), "type": kind, "turn_id": "t"}
    return json.dumps({**event, "role": "assistant", "text": text}).encode()


def pieces(name: str, *numbers: int) -> str:
    return "".join(f"{name}:{number}:{time.time():.6f} and so on\n" for number in numbers)


def seen_by(follower: Follower, lines: list[bytes]) -> Follower:
    for each in lines:
        follower.take(each, time.time())
    return follower


@pytest.fixture
async def follower() -> Follower:
    return Follower(SESSION, Seen())


STORED = [line(1, pieces("a", 1, 2)), line(2), line(3, pieces("a", 3))]


async def test_what_was_seen_once_and_in_order_is_no_problem(follower: Follower) -> None:
    assert seen_by(follower, STORED).compare(STORED) == []


@pytest.mark.parametrize(
    ("seen", "says"),
    [
        (STORED[:2], "2 events seen, 3 stored"),
        ([STORED[0], STORED[2]], "event 3 came for 2"),
        ([STORED[0], *STORED], "event 1 came for 2"),
        ([STORED[1], STORED[0], STORED[2]], "event 2 came for 1"),
        ([STORED[0], line(2, "other"), STORED[2]], "event 2 differs"),
    ],
    ids=["the last one is missing", "one is missing", "one twice", "out of order", "another"],
)
async def test_whatever_else_was_seen_is_a_problem(
    follower: Follower, seen: list[bytes], says: str
) -> None:
    assert any(says in problem for problem in seen_by(follower, seen).compare(STORED))


def test_what_the_stand_in_said_must_be_stored_once_and_in_order() -> None:
    assert check_stored(SESSION, STORED, {"a": 3}) == []
    assert len(check_stored(SESSION, STORED, {"a": 4})) == 1
    assert len(check_stored(SESSION, STORED, {"b": 1})) == 1
    assert len(check_stored(SESSION, [STORED[0], STORED[2]], {})) == 1
    doubled = [*STORED, line(4, pieces("a", 3))]
    assert len(check_stored(SESSION, doubled, {"a": 3})) == 1


async def test_the_end_of_a_turn_and_how_late_a_piece_was_are_noted(follower: Follower) -> None:
    seen = follower._seen
    seen_by(follower, [*STORED, line(4, kind="turn.completed")])
    assert await seen.ends["t"] == "turn.completed"
    assert (len(seen.late), len(seen.said_late)) == (4, 2)


def test_memory_is_compared_after_the_warm_up_alone() -> None:
    with short_directory() as place:
        watch = Watch(Layout(place / "data", place / "run"))
    grown = [Sample(float(second), 1000 * min(second, 60), 7) for second in range(301)]
    watch.samples["api"] = grown
    found = watch.memory(began=0.0, warm=60.0)["api"]
    assert found["ratio"] == 1.0
    assert found["most_open_files"] == 7
    watch.samples["api"] = [Sample(each.at, 1000 + int(each.at), 7) for each in grown]
    assert watch.memory(0.0, 60.0)["api"]["ratio"] > 1.1
