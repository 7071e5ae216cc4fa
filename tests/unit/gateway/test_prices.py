"""Which price a model has: its own or none."""

from __future__ import annotations

import pytest

from sidecar.gateway.metering import prices
from sidecar.gateway.metering.prices import PriceTable
from sidecar.gateway.metering.reading import Counts


@pytest.fixture
def table() -> PriceTable:
    rows = {
        "gpt-5": {"input": 1, "output": 2},
        "gpt-5-mini": {"input": 3, "output": 4, "cached": 0.5, "cache_write": 6},
        "my-*": {"input": 5, "output": 6},
        "my-big-*": {"input": 7, "output": 8},
    }
    return PriceTable.model_validate({"models": rows})


@pytest.mark.parametrize(
    ("model", "price"),
    [
        ("gpt-5", 1),
        ("gpt-5-2025-08-07", 1),
        ("gpt-5-latest", 1),
        ("gpt-5-mini", 3),
        ("gpt-5-mini-20250807", 3),
        ("gpt-5-pro", None),
        ("gpt-5.5", None),
        ("gpt-50", None),
        ("openai/gpt-5", None),
        ("my-model", 5),
        ("my-big-model", 7),
        ("", None),
        ("-", None),
    ],
)
def test_a_name_fits_itself_and_its_dates_and_no_other_model(
    table: PriceTable, model: str, price: float | None
) -> None:
    found = table.price(model)
    assert (None if found is None else found.input) == price


def test_what_goes_through_the_cache_has_its_own_price(table: PriceTable) -> None:
    mini, big = table.price("gpt-5-mini"), table.price("gpt-5")
    assert mini is not None
    assert big is not None
    counts = Counts(input=1_000_000, output=100_000, cached=600_000, cache_write=100_000)
    assert mini.of(counts) == pytest.approx(0.3 * 3 + 0.6 * 0.5 + 0.1 * 6 + 0.1 * 4)
    assert big.of(counts) == pytest.approx(1 + 0.2), "unless it has none"


def test_our_own_table_says_when_it_is_from_and_what_it_is() -> None:
    ours = prices.load(None)
    assert ours.as_of
    assert "estimates" in ours.about
    scripted = ours.price("scripted-1")
    assert scripted is not None
    assert scripted.of(Counts(10, 10)) == 0
