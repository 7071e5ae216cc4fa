"""How many streams this process serves at a time."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from contracts.errors import TooManyFollowers


class Followers:
    def __init__(self, most: int) -> None:
        self._most = most
        self.count = 0

    @contextlib.contextmanager
    def one(self) -> Iterator[None]:
        """A place for the time of the block. Raises: TooManyFollowers."""
        if self.count >= self._most:
            raise TooManyFollowers(
                f"{self._most} streams are open, which is as many as there may be.",
                hint="Close some, or try again later. HOLDFAST_FOLLOWERS is the limit.",
            )
        self.count += 1
        try:
            yield
        finally:
            self.count -= 1
