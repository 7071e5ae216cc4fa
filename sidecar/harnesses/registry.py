"""The harnesses there are. A new one is a file and a row here."""

from __future__ import annotations

from collections.abc import Mapping

from contracts.errors import UnknownHarness
from sidecar.harnesses.base import Harness
from sidecar.harnesses.claude import Claude
from sidecar.harnesses.codex import Codex
from sidecar.harnesses.opencode import Opencode
from sidecar.harnesses.pi import Pi

HARNESSES: Mapping[str, Harness] = {
    harness.name: harness for harness in (Claude(), Codex(), Opencode(), Pi())
}


def get(name: str) -> Harness:
    """Raises: UnknownHarness."""
    harness = HARNESSES.get(name)
    if harness is None:
        raise UnknownHarness(
            f"there is no harness {name!r}", hint=f"Choose one of: {', '.join(HARNESSES)}."
        )
    return harness
