"""How an installation tells what it is doing; the command line draws it."""

from __future__ import annotations

from typing import Protocol


class Progress(Protocol):
    def say(self, text: str) -> None:
        """One line that stays on the screen."""

    def step(self, title: str, done: float, total: float | None) -> None:
        """Where a long step stands; called often."""

    def finish(self) -> None:
        """The long step is over."""


class Silent:
    """For callers that only want the result."""

    def say(self, text: str) -> None:
        """Say nothing."""

    def step(self, title: str, done: float, total: float | None) -> None:
        """Draw nothing."""

    def finish(self) -> None:
        """Nothing was drawn."""
