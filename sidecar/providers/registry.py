"""The providers there are. A new one is a file and a row here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from contracts.errors import UnknownProvider


@dataclass(frozen=True)
class Row:
    """A provider by name, before anything of it is imported."""

    name: str
    title: str


ROWS: Mapping[str, Row] = {
    row.name: row
    for row in (
        Row("local", "This machine (bubblewrap)"),
        Row("docker", "A container (Docker)"),
    )
}


def check(name: str) -> Row:
    """Raises: UnknownProvider."""
    row = ROWS.get(name)
    if row is None:
        raise UnknownProvider(
            f"there is no provider {name!r}", hint=f"Choose one of: {', '.join(ROWS)}."
        )
    return row
