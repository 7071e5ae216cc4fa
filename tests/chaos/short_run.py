"""The run of chaos that every CI run makes."""

from __future__ import annotations

from tests.chaos.plan import DECK

SEED = 4


PER_ROUND = 4


ROUNDS = -(-len(DECK) // PER_ROUND)
