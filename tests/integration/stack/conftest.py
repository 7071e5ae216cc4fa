from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.services import short_directory
from tests.support.stack.fixtures import harness_dir as harness_dir
from tests.support.stack.fixtures import make_settings as make_settings
from tests.support.stack.fixtures import stack_dir as stack_dir
from tests.support.stack.origin import origin as origin
from tests.support.stack.running import Place, place


@pytest.fixture(scope="session")
def running_stack(harness_dir: Path) -> Iterator[Place]:
    """The whole embedded stack, as `up --detach` starts it, for tests that leave it running. Their
    modules or tests are in the xdist group `running-stack`, so that it is started once."""
    with short_directory() as home:
        made = place(home)
        try:
            up = made.command("up", "--detach")
            assert up.returncode == 0, up.stderr
            yield made
        finally:
            made.command("down")
