"""JSON that can be read in one way only."""

from __future__ import annotations

import json
from typing import Any, NoReturn

from contracts.errors import EngineCallRefused

_SHOWN = 60


def shown(name: object) -> str:
    """A name as an answer and a log line may carry it: short, one line, ASCII."""
    text = ascii(name)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


def parse(data: bytes | str, what: str) -> Any:
    """The one value in `data`.

    Raises: EngineCallRefused when it is not JSON, or names a key twice: parsers disagree about
    which of the two counts.
    """

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            names = [name for name, _ in pairs]
            double = next(name for name in names if names.count(name) > 1)
            raise EngineCallRefused(f"{what} names {shown(double)} twice")
        return found

    def no_constant(name: str) -> NoReturn:
        raise EngineCallRefused(f"{what} contains {name}, which is not JSON")

    try:
        text = data if isinstance(data, str) else data.decode("utf-8")
        return json.loads(text, object_pairs_hook=unique, parse_constant=no_constant)
    except (ValueError, RecursionError):
        raise EngineCallRefused(f"{what} is not JSON") from None
