"""Trying again, with growing pauses and an end."""

from __future__ import annotations

import asyncio
import random

FIRST = 0.1
LONGEST = 5.0


class Patience:
    """Lasts for `within` seconds from the last sign of life."""

    def __init__(self, within: float) -> None:
        self._within = within
        self._pause = FIRST
        self._deadline = 0.0
        self.alive()

    def progress(self) -> None:
        """Things go on as they should: start over."""
        self.hurry()
        self.alive()

    def hurry(self) -> None:
        """Try again soon; the end stays where it is."""
        self._pause = FIRST

    def alive(self) -> None:
        """The other side is there, though nothing goes on: put the end off."""
        self._deadline = asyncio.get_running_loop().time() + self._within

    async def pause(self, wake: asyncio.Event | None = None) -> bool:
        """Wait before the next try, or until `wake`; false when there shall be none."""
        left = self._deadline - asyncio.get_running_loop().time()
        if left <= 0:
            return False
        # half of it random: the turns that lose the sidecar lose it together
        delay = min(left, random.uniform(self._pause / 2, self._pause))  # noqa: S311 - a pause
        self._pause = min(LONGEST, self._pause * 2)
        try:
            async with asyncio.timeout(delay):
                await (wake or asyncio.Event()).wait()
        except TimeoutError:
            pass
        return True
