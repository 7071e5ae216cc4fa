"""The crash-point table of a run: a line for each place to die in, and whether all went as it must.

A test hands its table to its report; the dashboard puts them together (`tests/support/report.py`).
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any

PROPERTY = "crash_points"
MOST_SHOWN = 3


@dataclass(frozen=True)
class Row:
    """Where `who` dies, by what is left behind, and what must be made of it."""

    who: str
    where: str
    recovery: str


@dataclass
class Line:
    """`points` are the awaits and writes at which this is left behind, `deaths` the recoveries
    that were tried from there."""

    who: str
    where: str
    recovery: str
    points: int = 0
    deaths: int = 0
    wrong: list[str] = field(default_factory=list)


class Table:
    def __init__(self, lines: Iterable[Line] = ()) -> None:
        self._lines: dict[tuple[str, str], Line] = {}
        for line in lines:
            self._add(line)

    def _add(self, line: Line) -> None:
        known = self._lines.setdefault(
            (line.who, line.where), Line(line.who, line.where, line.recovery)
        )
        known.points += line.points
        known.deaths += line.deaths
        known.wrong += line.wrong

    @contextmanager
    def died(self, row: Row, points: int) -> Iterator[None]:
        """A death, and in the block the check of what came of it. A failure is noted, so that the
        table is whole; `hand_over` raises it."""
        wrong = []
        try:
            yield
        except Exception as error:  # noqa: BLE001 - whatever recovery did instead
            at = traceback.extract_tb(error.__traceback__)[-1]
            wrong.append(f"{at.name}:{at.lineno} {type(error).__name__}: {error}"[:500])
        self._add(Line(row.who, row.where, row.recovery, points, 1, wrong))

    def hand_over(
        self, record_property: Callable[[str, Any], None], expected: set[Row] | None = None
    ) -> None:
        """To the run's dashboard. Raises: AssertionError, when anything went wrong, or the deaths
        were in other places than these."""
        record_property(PROPERTY, [asdict(line) for line in self._lines.values()])
        wrong = [(line.where, each) for line in self._lines.values() for each in line.wrong]
        assert not wrong, f"{len(wrong)} times: {wrong[:MOST_SHOWN]}"
        if expected is not None:
            assert self._lines.keys() == {(row.who, row.where) for row in expected}

    def render(self) -> Iterator[str]:
        yield "| who dies | where | points | deaths | what recovery does | verdict |"
        yield "|---|---|---|---|---|---|"
        for line in self._lines.values():
            verdict = f"WRONG, {len(line.wrong)} times" if line.wrong else "ok"
            figures = f"{line.points} | {line.deaths}"
            yield f"| {line.who} | {line.where} | {figures} | {line.recovery} | {verdict} |"
