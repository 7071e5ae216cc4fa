"""What a run found, told so that it can be understood and repeated."""

from __future__ import annotations

import statistics
from collections import Counter
from dataclasses import dataclass, field
from typing import Literal

Kind = Literal[
    "event lost",
    "event doubled",
    "bytes lost",
    "late write",
    "rival box",
    "leak",
    "hang",
    "next turn",
    "no receipt",
    "no reason",
    "unreported",
    "stack",
]


@dataclass(frozen=True)
class Violation:
    """A rule that did not hold. `amount` counts what the kind counts: events, or bytes."""

    kind: Kind
    what: str
    amount: int = 1


@dataclass
class Report:
    """`missed`: faults that found nobody. `left_out`: what cannot be done here, and why."""

    seed: int
    rounds: int = 0
    found: list[tuple[str, Violation]] = field(default_factory=list)
    resumes: list[float] = field(default_factory=list)
    ends: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    missed: Counter[str] = field(default_factory=Counter)
    left_out: dict[str, str] = field(default_factory=dict)
    boxes_seen: int = 0
    claims: int = 0
    s3_requests: int = 0
    s3_broken: int = 0
    _known: set[Violation] = field(default_factory=set)

    def add(self, where: str, violations: list[Violation]) -> list[Violation]:
        """Take what is new: a rule that stays broken is told once."""
        new = [each for each in dict.fromkeys(violations) if each not in self._known]
        self._known |= set(new)
        self.found += [(where, violation) for violation in new]
        return new

    def amount(self, *kinds: Kind) -> int:
        return sum(violation.amount for _, violation in self.found if violation.kind in kinds)

    def lines(self) -> list[str]:
        """The last one is the one to look at."""
        told = [f"{where}: {found.kind}: {found.what}" for where, found in self.found]
        others: Counter[str] = Counter(found.kind for _, found in self.found)
        told.append(f"seed {self.seed}, {self.rounds} rounds")
        told.append("turns that were hit: " + _counts(self.ends))
        told.append("faults: " + _counts(self.faults))
        told.append("faults that found nobody: " + (_counts(self.missed) or "none"))
        told += [f"LEFT OUT: {kind}: {reason}" for kind, reason in self.left_out.items()]
        told.append(
            f"checked against what tools said: {self.claims} times a file, a line or a commit;"
            f" S3 requests of the services: {self.s3_requests}, and {self.s3_broken} broken"
        )
        told.append("violations: " + (_counts(others) or "none"))
        told.append(
            f"events lost {self.amount('event lost', 'event doubled')}"
            f" / bytes lost {self.amount('bytes lost')}"
            f" / rival boxes {self.amount('rival box')} / leaks {self.amount('leak')}"
            f" / seconds to resume p50 {self._percentile(50)} p95 {self._percentile(95)}"
        )
        return told

    def _percentile(self, percent: int) -> str:
        if len(self.resumes) < 2:
            return f"{self.resumes[0]:.1f}" if self.resumes else "-"
        return f"{statistics.quantiles(self.resumes, n=100, method='inclusive')[percent - 1]:.1f}"


def _counts(counter: Counter[str]) -> str:
    return ", ".join(f"{name} {count}" for name, count in counter.most_common())
