"""What a session's proxy tells: every connection, and never without bounds."""

from __future__ import annotations

from typing import Any

import pytest

from sidecar.gateway.egress.tally import MAX_KINDS, STILL_OPEN, THE_REST, Passage, Tally


def passage(host: str, up: int = 0, down: int = 0) -> Passage:
    made = Passage()
    made.host, made.port, made.method = host, 443, "CONNECT"
    made.up, made.down = up, down
    return made


@pytest.fixture
def told() -> list[dict[str, Any]]:
    return []


@pytest.fixture
def tally(told: list[dict[str, Any]]) -> Tally:
    return Tally(told.append)


def test_the_first_of_a_kind_is_told_at_once_and_the_rest_together(
    tally: Tally, told: list[dict[str, Any]]
) -> None:
    for size in (1, 10, 100):
        tally.ended(passage("a.example", size, 2 * size), "allowed")
    kind = {"host": "a.example", "port": 443, "method": "CONNECT", "verdict": "allowed"}
    first = {**kind, "reason": "", "connections": 1, "bytes_up": 1, "bytes_down": 2}
    assert told == [first]
    tally.flush()
    assert told[1:] == [{**first, "connections": 2, "bytes_up": 110, "bytes_down": 220}]
    tally.flush()
    assert len(told) == 2


def test_a_verdict_is_never_hidden_by_another(tally: Tally, told: list[dict[str, Any]]) -> None:
    tally.ended(passage("a.example"), "allowed")
    tally.ended(passage("a.example"), "refused", "off")
    tally.ended(passage("a.example"), "refused", "private")
    assert [(each["verdict"], each["reason"]) for each in told] == [
        ("allowed", ""),
        ("refused", "off"),
        ("refused", "private"),
    ]


def test_the_next_turn_tells_anew(tally: Tally, told: list[dict[str, Any]]) -> None:
    tally.ended(passage("a.example", 1), "allowed")
    tally.ended(passage("a.example", 2), "allowed")
    tally.begin_turn()
    tally.ended(passage("a.example", 4), "allowed")
    assert [each["bytes_up"] for each in told] == [1, 2, 4]


def test_any_number_of_hosts_makes_a_bounded_number_of_records(
    tally: Tally, told: list[dict[str, Any]]
) -> None:
    for number in range(5 * MAX_KINDS):
        tally.ended(passage(f"h{number}.example", 1), "refused", "no")
    tally.flush()
    assert len(told) == MAX_KINDS + 1
    assert told[-1]["reason"] == THE_REST
    assert told[-1]["connections"] == 4 * MAX_KINDS
    assert sum(each["bytes_up"] for each in told) == 5 * MAX_KINDS


def test_what_is_still_open_when_the_turn_ends_is_told_then_and_counted_once(
    tally: Tally, told: list[dict[str, Any]]
) -> None:
    tunnel = passage("a.example", 5, 6)
    tally.opened(tunnel)
    tally.flush()
    assert (told[0]["reason"], told[0]["bytes_up"], told[0]["connections"]) == (STILL_OPEN, 5, 1)
    tally.flush()
    assert len(told) == 1
    tunnel.up, tunnel.down = 7, 9
    tally.ended(tunnel, "allowed")
    assert [each["connections"] for each in told] == [1, 0]
    assert sum(each["bytes_up"] for each in told) == 7
    assert sum(each["bytes_down"] for each in told) == 9
