"""Every kind of fault once, in a few rounds: the long run is `make chaos`."""

from __future__ import annotations

import logging

import pytest

from tests.chaos.plan import DECK, plan_round
from tests.chaos.run import Options, run_chaos

log = logging.getLogger(__name__)

SEED = 4
PER_ROUND = 4
ROUNDS = -(-len(DECK) // PER_ROUND)


@pytest.mark.timeout(400)
@pytest.mark.stack
@pytest.mark.harness
async def test_a_short_run_loses_nothing(fuse: None) -> None:
    report = await run_chaos(Options(ROUNDS, SEED, lanes=3, per_round=PER_ROUND), log.info)
    assert report.rounds == ROUNDS
    assert report.claims > ROUNDS, "nothing was asked of the files"
    assert report.s3_broken > 0, "the services did not go through the proxy"
    assert report.found == [], "\n".join(report.lines())


def test_a_round_depends_on_nothing_but_seed_and_number() -> None:
    assert plan_round(SEED, 5, 4) == plan_round(SEED, 5, 4)
    assert plan_round(SEED, 5, 4) != plan_round(SEED + 1, 5, 4)


def test_a_few_rounds_have_every_kind_of_fault() -> None:
    plans = [plan_round(SEED, number, 3, PER_ROUND) for number in range(ROUNDS)]
    dealt = {(fault.victim, fault.action) for plan in plans for fault in plan.faults}
    assert {card for card in DECK if isinstance(card, tuple)} <= dealt
    assert any(action == "pause" for _, action in dealt)
