"""What a run of chaos plans."""

from __future__ import annotations

from tests.chaos.plan import DECK, HARNESSES, plan_round
from tests.chaos.short_run import PER_ROUND, ROUNDS, SEED


def test_a_round_depends_on_nothing_but_seed_and_number() -> None:
    assert plan_round(SEED, 5, 4) == plan_round(SEED, 5, 4)
    assert plan_round(SEED, 5, 4) != plan_round(SEED + 1, 5, 4)


def test_a_few_rounds_have_every_kind_of_fault() -> None:
    plans = [plan_round(SEED, number, 3, PER_ROUND) for number in range(ROUNDS)]
    dealt = {(fault.victim, fault.action) for plan in plans for fault in plan.faults}
    cards = {card for card in DECK if card != "calm"}
    assert {card for card in cards if card[1] != "damage"} <= dealt
    assert {victim for victim, action in cards if action == "damage"} <= {
        victim for victim, action in dealt if action in ("truncate", "empty")
    }


def test_a_few_rounds_hit_a_harness_and_others_only_what_is_around_it() -> None:
    plans = [plan_round(SEED, number, 3, PER_ROUND) for number in range(ROUNDS)]
    assert {plan.hits_harness for plan in plans} == {True, False}
    assert not [plan for plan in plans if plan.hits_harness and plan.harness not in HARNESSES]


def test_what_an_engine_has_not_is_not_hit() -> None:
    plans = [plan_round(SEED, number, 3, PER_ROUND, "checkpoint") for number in range(ROUNDS)]
    hit = {fault.victim for plan in plans for fault in plan.faults}
    assert not hit & {"mount", "mount-record"}
    assert {"sidecar", "store-disk"} <= hit
