"""What happens in a round: the turn, and the faults that hit it. Seed and number decide, no clock.

The kinds of faults are dealt like cards: every deck of them is shuffled anew and used up before the
next, so that a run of as many rounds as half a deck has seen each kind.
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
    "backend",
    "s3",
    "data-disk",
    "run-disk",
    "postgres-disk",
    "store-disk",
    "progress",
    "journal",
    "live",
    "box-record",
    "mount-record",
    "uid",
    "gateway-log",
]
# kill: SIGKILL; end: as its supervisor or the api would; pause: SIGSTOP, later SIGCONT;
# delay, refuse, reset: done to S3 requests for a while; fill: a disk has no room for a while;
# step: a service has another wall clock for a while; truncate, empty: a record, while the service
# that keeps it is down.
Action = Literal[
    "kill",
    "end",
    "pause",
    "delay",
    "refuse",
    "reset",
    "fill",
    "step",
    "truncate",
    "empty",
]
# between: before the turn is sent; sent: right after; mounting: the sandbox is on its way;
# tool, text: in the middle of one; barrier: the answer is there, the receipt is not.
Moment = Literal["between", "sent", "mounting", "tool", "text", "barrier"]

IN_BOX: tuple[Victim, ...] = ("harness", "adapter", "agent", "box")
PARTS: tuple[Victim, ...] = ("sidecar", "api", "postgres", "seaweedfs", "gateway")
S3_ACTIONS: tuple[Action, ...] = ("delay", "refuse", "reset")
PAUSED: tuple[Victim, ...] = ("harness", "adapter", "agent", "mount", *PARTS, "backend")
DISKS: tuple[Victim, ...] = ("data-disk", "run-disk", "postgres-disk", "store-disk")
STEPPED: tuple[Victim, ...] = ("sidecar", "api", "gateway")
RECORDS: tuple[Victim, ...] = (
    *("progress", "journal", "live", "box-record", "mount-record", "uid", "gateway-log"),
)
# below the api's lease of 10 s, beyond it, and beyond the 40 s that a mount may hang
PAUSE_SECONDS = (1.0, 2.0, 4.0, 12.0, 12.0, 45.0)
# below and beyond the quarter of an hour that S3 allows a signature to be off
STEPS = (-7200.0, -300.0, -20.0, 20.0, 300.0, 7200.0)

# A record that is damaged is truncated or emptied, by chance.
Card = tuple[Victim, Action | Literal["damage"]] | Literal["calm"]
DECK: tuple[Card, ...] = (
    *((victim, "kill") for victim in (*IN_BOX, "mount", *PARTS)),
    ("box", "end"),
    *((victim, "end") for victim in PARTS if victim != "gateway"),
    *(("s3", action) for action in S3_ACTIONS),
    *((victim, "pause") for victim in PAUSED),
    *((victim, "fill") for victim in DISKS),
    *((victim, "step") for victim in STEPPED),
    *((victim, "damage") for victim in RECORDS),
    "calm",
    "calm",
)
# What an engine does not have.
NOT_OF_ENGINE: dict[str, frozenset[Victim]] = {"checkpoint": frozenset({"mount", "mount-record"})}
# Nothing of a sandbox is there before the harness works; everything else can be hit at any moment.
MOMENTS: tuple[Moment, ...] = ("between", "sent", "mounting", "tool", "text", "barrier")
WORKING: tuple[Moment, ...] = ("tool", "tool", "text", "barrier")


@dataclass(frozen=True)
class Fault:
    """`after` seconds behind its moment; what is mended lasts for `seconds`. `amount`: how far a
    clock is stepped, in seconds; what part of a record stays."""

    victim: Victim
    action: Action
    moment: Moment
    after: float
    seconds: float = 0.0
    amount: float = 0.0

    def __str__(self) -> str:
        amount = {"step": f" by {self.amount:+g} s", "truncate": f" to {self.amount:.0%}"}
        how = amount.get(self.action, "") + (f" for {self.seconds:g} s" if self.seconds else "")
        return f"{self.action} {self.victim}{how} at {self.moment}+{self.after:.2f}"


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


def plan_round(
    seed: int, number: int, lanes: int, per_round: int = 2, engine: str = "weed"
) -> Round:
    """Round `number`, counted from 0, of the run with this seed; `per_round` cards for each."""
    chance = random.Random(f"{seed}:{number}")
    lane = number % lanes
    own = HARNESSES[lane % len(HARNESSES)]
    harness = own if chance.random() < 0.7 else chance.choice(HARNESSES)
    script = write_script(number, range(lane, number, lanes), chance)
    hand = _hand(seed, number, per_round)
    faults = [_fault(card, chance) for card in hand if card != "calm"]
    missing = NOT_OF_ENGINE.get(engine, frozenset())
    hit = tuple(fault for fault in faults if fault.victim not in missing)
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
    assert card != "calm"
    victim, kind = card
    action: Action = chance.choice(("truncate", "empty")) if kind == "damage" else kind
    seconds = amount = 0.0
    if action == "pause":
        seconds = chance.choice(PAUSE_SECONDS)
    elif victim == "s3" or action == "fill":
        seconds = chance.uniform(2, 8)
    elif action == "step":
        seconds, amount = chance.uniform(2, 12), chance.choice(STEPS)
    elif action == "truncate":
        amount = chance.uniform(0.1, 0.99)
    working = victim in IN_BOX or victim in RECORDS
    moment = chance.choice(WORKING if working else MOMENTS)
    after = chance.uniform(0, 0.5)
    return Fault(victim, action, moment, round(after, 3), round(seconds, 1), round(amount, 2))
