from __future__ import annotations

from pathlib import Path

import pytest

from sidecar.workspace.choice import choose


def test_auto_takes_geesefs_where_its_binary_is() -> None:
    choice = choose("auto", Path("/opt/geesefs"))
    assert choice.name == "geesefs"
    assert "/opt/geesefs" in choice.why


def test_auto_takes_weed_otherwise_and_says_why() -> None:
    choice = choose("auto", None)
    assert choice.name == "weed"
    assert "geesefs" in choice.why


def test_an_engine_that_was_asked_for_is_never_replaced() -> None:
    assert choose("weed", Path("/opt/geesefs")).name == "weed"
    with pytest.raises(ValueError, match="no geesefs"):
        choose("geesefs", None)
