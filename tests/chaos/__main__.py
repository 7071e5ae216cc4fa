"""`python -m tests.chaos --rounds 200 --seed 7`: rounds of faults on a stack of its own."""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import tempfile
import time
from pathlib import Path

from tests.chaos.plan import HARNESSES, plan_round
from tests.chaos.run import Options, run_chaos


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--seed", type=int, help="default: a new one, which is told")
    parser.add_argument("--first", type=int, default=0, help="number of the first round")
    parser.add_argument("--engine", choices=("weed", "geesefs", "checkpoint"), default="weed")
    parser.add_argument("--lanes", type=int, default=len(HARNESSES), help="sessions at a time")
    parser.add_argument("--harnesses", action="store_true", help="the real ones in every round")
    parser.add_argument("--evidence", type=Path, help="where violations are explained")
    parser.add_argument("--plan", action="store_true", help="show the rounds, run none")
    return parser.parse_args()


def say(text: str) -> None:
    sys.stdout.write(f"{time.strftime('%H:%M:%S')} {text}\n")
    sys.stdout.flush()


def main() -> int:
    asked = options()
    seed = random.SystemRandom().randrange(10**6) if asked.seed is None else asked.seed
    if asked.plan:
        for number in range(asked.first, asked.first + asked.rounds):
            sys.stdout.write(f"{plan_round(seed, number, asked.lanes, engine=asked.engine)}\n")
        return 0
    evidence = asked.evidence or Path(tempfile.gettempdir()) / f"holdfast-chaos-{seed}"
    chosen = Options(
        asked.rounds,
        seed,
        asked.engine,
        asked.lanes,
        first=asked.first,
        evidence=evidence,
        light=not asked.harnesses,
    )
    report = asyncio.run(run_chaos(chosen, say))
    if report.found:
        say(f"evidence: {evidence}")
    sys.stdout.write("\n".join(report.lines()) + "\n")
    return 1 if report.found else 0


if __name__ == "__main__":
    sys.exit(main())
