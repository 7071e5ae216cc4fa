"""Work that is done together, within a bound."""

from __future__ import annotations

import asyncio

import pytest

from sidecar.tasks import at_a_time


async def test_no_more_than_that_many_run_and_the_results_are_in_order() -> None:
    running = most = 0

    async def one(number: int) -> int:
        nonlocal running, most
        running += 1
        most = max(most, running)
        for _ in range(3):
            await asyncio.sleep(0)
        running -= 1
        return number

    assert await at_a_time(3, [one(number) for number in range(10)]) == list(range(10))
    assert most == 3


async def test_one_that_fails_does_not_keep_the_others_from_their_end() -> None:
    done = []

    async def one(number: int) -> None:
        await asyncio.sleep(0)
        if number == 1:
            raise ValueError("one")
        done.append(number)

    with pytest.raises(ValueError, match="one"):
        await at_a_time(2, [one(number) for number in range(5)])
    assert done == [0, 2, 3, 4]
