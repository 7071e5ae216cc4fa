"""The fast tier: no services and no processes, which a guard checks."""

from __future__ import annotations

from tests.support.no_processes import pytest_runtest_call as pytest_runtest_call
from tests.support.no_processes import pytest_runtest_setup as pytest_runtest_setup
