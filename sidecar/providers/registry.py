"""The providers there are. A new one is a file and a row here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from contracts.errors import UnknownProvider


@dataclass(frozen=True)
class Row:
    """A provider by name, before anything of it is imported. One with a `module` of its own has a
    vendor's SDK in it."""

    name: str
    title: str
    module: str | None = None
    class_name: str = ""

    @property
    def network(self) -> Literal["gateway", "provider"]:
        """Who says what its sandboxes may reach: our gateway, which is their only way out, or the
        provider, whose network they have."""
        return "gateway" if self.module is None else "provider"

    @property
    def install_hint(self) -> str:
        return f"install its SDK: uv sync --package holdfast-sidecar --extra {self.name}"


ROWS: Mapping[str, Row] = {
    row.name: row
    for row in (
        Row("local", "This machine (bubblewrap)"),
        Row("docker", "A container (Docker)"),
        Row("e2b", "E2B", "sidecar.providers.e2b", "E2BProvider"),
        Row("modal", "Modal", "sidecar.providers.modal", "ModalProvider"),
        Row("daytona", "Daytona", "sidecar.providers.daytona", "DaytonaProvider"),
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
