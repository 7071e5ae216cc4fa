"""The run of chaos that every CI run makes."""

from __future__ import annotations

from tests.chaos.plan import DECK

# One round hits a harness, and no pause is longer than 12 s.
SEED = 27145


PER_ROUND = 8


ROUNDS = -(-len(DECK) // PER_ROUND)
