from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import examples as examples
from tests.support.models import FIXED_SECONDS, IS_FIXED, LONG_SECONDS


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.timeout(FIXED_SECONDS if IS_FIXED else LONG_SECONDS))
