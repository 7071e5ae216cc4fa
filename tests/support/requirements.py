"""What a test needs of the machine. HOLDFAST_REQUIRE names what must be there."""

from __future__ import annotations

import os
from typing import NoReturn

import pytest

REQUIRED = frozenset(filter(None, os.environ.get("HOLDFAST_REQUIRE", "").split(",")))


def missing(what: str, reason: str) -> NoReturn:
    """Skip for want of `what`, or fail where the run requires it."""
    if what in REQUIRED:
        pytest.fail(f"{what} is required here: {reason}")
    pytest.skip(reason)
