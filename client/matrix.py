"""The matrix: does a session survive its sandbox, for each harness on each provider?

Each cell runs one session through write, store, kill, read back, transcript and clean, against a
stack that is up. With `cross`, a session also moves in its middle, from each provider to each other
and from each harness to each other: then nothing is killed, and files and conversation follow.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable, Sequence
from typing import Literal, Self
from uuid import UUID

from pydantic import BaseModel, ConfigDict

from client.holdfast import Holdfast
from client.settings import Store
from client.trials import STEPS as STEPS
from client.trials import Bucket, CheckFailed, How, Moving, Place, Trial, open_bucket
from contracts import errors
from contracts.bodies import Capabilities

Verdict = Literal["PASS", "FAIL", "SKIP"]
CELL_SECONDS = 900
PLAIN = How()


class Cell(BaseModel):
    """One harness on one provider, and what came of it. Durations in seconds."""

    model_config = ConfigDict(frozen=True)

    harness: str
    provider: str
    verdict: Verdict
    reason: str = ""
    engine: str | None = None
    session_id: UUID | None = None
    steps: dict[str, float] = {}

    @property
    def seconds(self) -> float:
        return sum(self.steps.values())


class Report(BaseModel):
    """`--json`."""

    model_config = ConfigDict(frozen=True)

    cells: list[Cell]
    passed: int
    failed: int
    skipped: int

    @classmethod
    def of(cls, cells: list[Cell]) -> Self:
        count = [cell.verdict for cell in cells].count
        return cls(cells=cells, passed=count("PASS"), failed=count("FAIL"), skipped=count("SKIP"))


class News(BaseModel):
    """How a cell stands: it runs the step, or has ended with the verdict."""

    model_config = ConfigDict(frozen=True)

    harness: str
    provider: str
    step: str | None = None
    verdict: Verdict | None = None
    reason: str = ""
    engine: str | None = None
    session_id: UUID | None = None
    steps: dict[str, float] = {}


Tell = Callable[[News], None]


async def run_cell(trial: Trial, names: Place, tell: Tell) -> Cell:
    """One cell: a trial from its first step to the one that fails, or to the last."""
    from botocore.exceptions import BotoCoreError, ClientError

    took: dict[str, float] = {}
    reason, session_id, step = "", None, "create"
    try:
        async with asyncio.timeout(CELL_SECONDS):
            session_id = await trial.begin()
            for step, act in trial.steps():
                news = News(harness=names.harness, provider=names.provider, step=step)
                done = {"engine": trial.engine, "session_id": session_id, "steps": dict(took)}
                tell(news.model_copy(update=done))
                started = time.monotonic()
                try:
                    await act(session_id)
                finally:
                    took[step] = round(time.monotonic() - started, 3)
    except (CheckFailed, errors.HoldfastError, ClientError, BotoCoreError) as error:
        reason = f"{step}: {error}"
    except TimeoutError:
        reason = f"{step}: the cell took over {CELL_SECONDS} s"
    finally:
        await asyncio.shield(trial.discard())
    return Cell(
        harness=names.harness,
        provider=names.provider,
        verdict="FAIL" if reason else "PASS",
        reason=reason,
        engine=trial.engine,
        session_id=session_id,
        steps=took,
    )


def skip_reason(known: Capabilities, place: Place) -> str:
    """Why this stack cannot run the cell; empty when it can."""
    row = next((each for each in known.providers if each.name == place.provider), None)
    if row is None:
        return f"the stack has no provider {place.provider}"
    if not row.available:
        return row.reason or f"{place.provider} is not available"
    if place.harness not in {each.name for each in known.harnesses}:
        return f"the stack has no harness {place.harness}"
    return ""


async def run_matrix(
    hf: Holdfast,
    store: Store,
    *,
    harnesses: Sequence[str] = (),
    providers: Sequence[str] = (),
    require: Sequence[str] = (),
    how: How = PLAIN,
    jobs: int = 1,
    cross: bool = False,
    tell: Tell = lambda _: None,
) -> list[Cell]:
    """Every cell of harnesses x providers, all that the stack knows when left out; with `cross`,
    also each move from one of them to another.

    `tell` hears of every step of a cell, and of its end.

    Raises: InvalidInput when a required name is in no cell; what the api raises.
    """
    known = await hf.capabilities()
    harnesses = harnesses or [each.name for each in known.harnesses]
    providers = providers or [each.name for each in known.providers]
    if absent := set(require) - {*harnesses, *providers}:
        raise errors.InvalidInput(f"--require names what is in no cell: {sorted(absent)}")
    at_once = asyncio.Semaphore(jobs)

    async def cell(bucket: Bucket, place: Place, then: Place | None) -> Cell:
        names = place if then is None else _arrow(place, then)
        both = [place] if then is None else [place, then]
        reason = next((why for each in both if (why := skip_reason(known, each))), "")
        if reason:
            required = any(each.harness in require or each.provider in require for each in both)
            verdict: Verdict = "FAIL" if required else "SKIP"
            done = Cell(
                harness=names.harness, provider=names.provider, verdict=verdict, reason=reason
            )
        else:
            async with at_once:
                trial = Trial(hf, bucket, place, how)
                if then is not None:
                    trial = Moving(hf, bucket, place, then, how)
                done = await run_cell(trial, names, tell)
        tell(News(**done.model_dump()))
        return done

    places = [Place(harness, provider) for provider in providers for harness in harnesses]
    wanted: list[tuple[Place, Place | None]] = [(place, None) for place in places]
    if cross:
        wanted += moves(harnesses, providers)
    async with open_bucket(store) as bucket, asyncio.TaskGroup() as tasks:
        running = [tasks.create_task(cell(bucket, *each)) for each in wanted]
    return [task.result() for task in running]


def moves(harnesses: Sequence[str], providers: Sequence[str]) -> list[tuple[Place, Place | None]]:
    """Each provider to each other with one harness, each harness to each other on one provider."""
    found: list[tuple[Place, Place | None]] = []
    for one, other in itertools.permutations(providers, 2):
        found.append((Place(harnesses[-1], one), Place(harnesses[-1], other)))
    for one, other in itertools.permutations(harnesses, 2):
        found.append((Place(one, providers[0]), Place(other, providers[0])))
    return found


def _arrow(place: Place, then: Place) -> Place:
    """A move, as it is called in the table."""

    def name(one: str, other: str) -> str:
        return one if one == other else f"{one} > {other}"

    return Place(name(place.harness, then.harness), name(place.provider, then.provider))
