"""Keeps `state.json` as it should be while the stack runs."""

from __future__ import annotations

import asyncio

from stack.embedded.layout import Layout
from stack.embedded.state import StackState, write_state

RETRY_SECONDS = 1.0


class StateWriter:
    """Writes the state of a running stack. What a full disk has no room for now is written as soon
    as it has, while `keep_trying` runs: else `holdfast status` would be wrong for ever."""

    def __init__(self, layout: Layout, state: StackState) -> None:
        self._layout = layout
        self._state = state
        self._unwritten = asyncio.Event()

    def write(self) -> None:
        try:
            write_state(self._layout, self._state)
        except OSError:
            self._unwritten.set()
        else:
            self._unwritten.clear()

    async def keep_trying(self) -> None:
        """For ever."""
        while True:
            await self._unwritten.wait()
            await asyncio.sleep(RETRY_SECONDS)
            self.write()
