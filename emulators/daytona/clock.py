"""The time that leases are counted in: the real one, and what a test has let pass on top."""

from __future__ import annotations

import time


class Clock:
    def __init__(self) -> None:
        self._passed = 0.0

    def now(self) -> float:
        """Seconds since 1970."""
        return time.time() + self._passed

    def advance(self, seconds: float) -> None:
        self._passed += seconds
