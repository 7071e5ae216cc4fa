"""What happens in a round: the turn, and the faults that hit it. Seed and number decide, no clock.

The kinds of faults are dealt like cards: every deck of them is shuffled anew and used up before the
next, so that a run of eleven rounds has seen each kind.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Literal

from tests.chaos.script import Script, write_script

HARNESSES = ("claude", "codex", "opencode", "pi")
# The name here of the agent that is cheap to start.
LIGHT = "light"

Victim = Literal[
    "harness",
    "adapter",
    "agent",
    "box",
    "mount",
    "sidecar",
    "api",
    "postgres",
    "seaweedfs",
    "gateway",
    "s3",
]
# kill: SIGKILL; end: as its supervisor or the api would; pause: SIGSTOP, later SIGCONT;
# the rest is done to S3 requests for a while.
Action = Literal["kill", "end", "pause", "delay", "refuse", "reset"]
# between: before the turn is sent; sent: right after; mounting: the sandbox is on its way;
# tool, text: in the middle of one; barrier: the answer is there, the receipt is not.
Moment = Literal["between", "sent", "mounting", "tool", "text", "barrier"]

IN_BOX: tuple[Victim, ...] = ("harness", "adapter", "agent", "box")
PARTS: tuple[Victim, ...] = ("sidecar", "api", "postgres", "seaweedfs", "gateway")
S3_ACTIONS: tuple[Action, ...] = ("delay", "refuse", "reset")
PAUSED: tuple[Victim, ...] = ("harness", "adapter", "agent", "mount", *PARTS)

Card = tuple[Victim, Action] | Literal["pause", "calm"]
DECK: tuple[Card, ...] = (
    *((victim, "kill") for victim in (*IN_BOX, "mount", *PARTS)),
    ("box", "end"),
    *((victim, "end") for victim in PARTS if victim != "gateway"),
    *(("s3", action) for action in S3_ACTIONS),
    "pause",
    "pause",
    "calm",
    "calm",
)
# Nothing of a sandbox is there before the harness works; everything else can be hit at any moment.
MOMENTS: tuple[Moment, ...] = ("between", "sent", "mounting", "tool", "text", "barrier")
WORKING: tuple[Moment, ...] = ("tool", "tool", "text", "barrier")


@dataclass(frozen=True)
class Fault:
    """`after` seconds behind its moment; a pause or a bad S3 lasts for `seconds`."""

    victim: Victim
    action: Action
    moment: Moment
    after: float
    seconds: float = 0.0

    def __str__(self) -> str:
        lasting = f" for {self.seconds:g} s" if self.seconds else ""
        return f"{self.action} {self.victim}{lasting} at {self.moment}+{self.after:.2f}"


@dataclass(frozen=True)
class Round:
    number: int
    lane: int
    harness: str
    next_harness: str
    script: Script
    faults: tuple[Fault, ...]

    @property
    def hits_harness(self) -> bool:
        """Whether a fault is the harness's or its adapter's own."""
        return any(fault.victim in ("harness", "adapter") for fault in self.faults)

    def __str__(self) -> str:
        faults = ", ".join(map(str, self.faults)) or "calm"
        return f"round {self.number} ({self.harness}): {faults}"


def plan_round(seed: int, number: int, lanes: int, per_round: int = 2) -> Round:
    """Round `number`, counted from 0, of the run with this seed; `per_round` cards for each."""
    chance = random.Random(f"{seed}:{number}")
    lane = number % lanes
    own = HARNESSES[lane % len(HARNESSES)]
    harness = own if chance.random() < 0.7 else chance.choice(HARNESSES)
    script = write_script(number, range(lane, number, lanes), chance)
    faults = (_fault(card, chance) for card in _hand(seed, number, per_round) if card != "calm")
    hit = tuple(faults)
    next_harness = harness if chance.random() < 0.5 else chance.choice(HARNESSES)
    return Round(number, lane, harness, next_harness, script, hit)


def warm_seconds(seed: int, phase: int) -> float:
    """How long boxes are kept in a phase of the run."""
    return random.Random(f"{seed}:warm:{phase}").choice((600.0, 600.0, 2.0, 0.0))


def _hand(seed: int, number: int, per_round: int) -> list[Card]:
    rounds_per_deck = -(-len(DECK) // per_round)
    deck = list(DECK)
    random.Random(f"{seed}:deck:{number // rounds_per_deck}").shuffle(deck)
    first = number % rounds_per_deck * per_round
    return deck[first : first + per_round]


def _fault(card: Card, chance: random.Random) -> Fault:
    victim: Victim
    action: Action
    if card == "pause":
        victim, action = chance.choice(PAUSED), "pause"
        seconds = chance.choice((1.0, 2.0, 4.0, 12.0))
    else:
        assert card != "calm"
        victim, action = card
        seconds = chance.uniform(2, 8) if victim == "s3" else 0.0
    moment = chance.choice(WORKING if victim in IN_BOX else MOMENTS)
    after = chance.uniform(0, 0.8)
    return Fault(victim, action, moment, round(after, 3), round(seconds, 1))
