"""What tokens cost, by a table in a file. What has no price there has none: nothing is guessed."""

from __future__ import annotations

import json
import re
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from sidecar.gateway.metering.reading import Counts

OURS = Path(__file__).with_name("prices.json")
# A model's name may be followed by its date: that is the same model.
_DATED = re.compile(r"[-@](\d{8}|\d{4}-\d{2}-\d{2}|latest)")


class Price(BaseModel):
    """Dollars per million tokens. What is read from the vendor's cache, or written to it, costs as
    much as what goes in unless it says otherwise."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    input: float = Field(ge=0)
    output: float = Field(ge=0)
    cached: float | None = Field(None, ge=0)
    cache_write: float | None = Field(None, ge=0)

    def of(self, counts: Counts) -> float:
        cached = self.input if self.cached is None else self.cached
        written = self.input if self.cache_write is None else self.cache_write
        fresh = max(0, counts.input - counts.cached - counts.cache_write)
        dollars = (
            fresh * self.input
            + counts.cached * cached
            + counts.cache_write * written
            + counts.output * self.output
        )
        return round(dollars / 1_000_000, 9)


class PriceTable(BaseModel):
    """By model; a name that ends in `*` stands for all that begin with it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    about: str = ""
    as_of: str = ""
    models: dict[str, Price]

    def price(self, model: str) -> Price | None:
        """That of the longest name that fits."""
        for name in sorted(self.models, key=len, reverse=True):
            if _fits(name, model):
                return self.models[name]
        return None


def _fits(name: str, model: str) -> bool:
    if name.endswith("*"):
        return model.startswith(name[:-1])
    rest = model.removeprefix(name)
    return model.startswith(name) and (not rest or bool(_DATED.fullmatch(rest)))


def load(path: Path | None) -> PriceTable:
    """The table in this file, or ours.

    Raises: ValueError, in words for whoever wrote the file.
    """
    where = path or OURS
    try:
        return PriceTable.model_validate(json.loads(where.read_bytes()))
    except OSError as error:
        raise ValueError(f"HOLDFAST_MODEL_PRICES: {where} cannot be read: {error}") from error
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(step) for step in first["loc"])
        raise ValueError(f"HOLDFAST_MODEL_PRICES: {where}: {place}: {first['msg']}") from error
    except ValueError as error:
        raise ValueError(f"HOLDFAST_MODEL_PRICES: {where} is not JSON: {error}") from error
