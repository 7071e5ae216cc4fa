"""Waiting for a condition, always with a bound."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

POLL_SECONDS = 0.03


async def until(
    condition: Callable[[], bool], seconds: float, *, every: float = POLL_SECONDS
) -> bool:
    """Poll `condition` until it holds; False when it did not within `seconds`."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + seconds
    while not condition():
        if loop.time() >= deadline:
            return False
        await asyncio.sleep(every)
    return True
