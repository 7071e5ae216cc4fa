"""State machines of hypothesis over asynchronous parts.

Hypothesis draws and calls rules in a thread of its own; what a rule does runs on the test's loop,
where the services and clients of its fixtures live.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar, cast

from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule, run_state_machine_as_test

from tests.support.examples import PROFILE

T = TypeVar("T")

STEP_SECONDS = 120.0
# Some examples, and many; pytest's own bound is for one test of the usual length.
FIXED_SECONDS = 600.0
LONG_SECONDS = 6 * 3600.0
IS_FIXED = os.environ.get(PROFILE, "fixed") == "fixed"


@dataclass(frozen=True)
class Action:
    """Something that a machine may do next: `weight` times as often as others, while `possible`."""

    name: str
    arguments: Mapping[str, st.SearchStrategy[Any]]
    weight: int
    possible: Callable[[Any], object]


def action(
    *,
    weight: int = 1,
    possible: Callable[[Any], object] = lambda _: True,
    **arguments: st.SearchStrategy[Any],
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Make a method one of its machine's actions.

    Hypothesis's own rules are left out at random, for a whole example: of the few examples that CI
    has time for, most would do nothing.
    """

    def mark(method: Callable[..., None]) -> Callable[..., None]:
        vars(method)["action"] = Action(method.__name__, arguments, weight, possible)
        return method

    return mark


class Machine(RuleBasedStateMachine):
    """Does one action after the other; their work is done by `run`."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__()
        self._loop = loop
        methods = [getattr(type(self), name) for name in sorted(dir(type(self)))]
        self._actions: list[Action] = [m.action for m in methods if hasattr(m, "action")]

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """What a coroutine returns or raises on the test's loop."""

        async def bounded() -> T:
            async with asyncio.timeout(STEP_SECONDS):
                return await work

        return asyncio.run_coroutine_threadsafe(bounded(), self._loop).result()

    @rule(data=st.data())
    def step(self, data: st.DataObject) -> None:
        possible = [each for each in self._actions if each.possible(self)]
        weighted = [each.name for each in possible for _ in range(each.weight)]
        name = data.draw(st.sampled_from(weighted), label="action")
        (chosen,) = (each for each in possible if each.name == name)
        arguments = data.draw(st.fixed_dictionaries(dict(chosen.arguments)), label="with")
        getattr(self, name)(**arguments)


def choose_settings(examples: int, steps: int) -> settings:
    """`examples` of `steps` each, the same ones in every run; what the profile says, in another."""
    profile = settings.get_profile(os.environ.get(PROFILE, "fixed"))
    if not IS_FIXED:
        return settings(profile, suppress_health_check=list(HealthCheck))
    return settings(
        profile,
        max_examples=examples,
        stateful_step_count=steps,
        # Nobody waits for the smallest example in CI; the long runs look for it.
        phases=(Phase.generate,),
        report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),
    )


async def run_machine(make: Callable[[], Machine], how: settings, fixed_seed: int) -> None:
    """Raises: what a rule or an invariant raises, with the steps that lead there."""
    if IS_FIXED:
        make = seed(fixed_seed)(make)
    await asyncio.to_thread(run_state_machine_as_test, cast("type[Machine]", make), settings=how)
