"""A stack of its own: what is tried on it would get in the way of other tests."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from client import Holdfast
from tests.support.running_stack import RunningStack, running_stack
from tests.support.services import short_directory


@pytest.fixture(scope="session")
async def stack(fuse: None) -> AsyncIterator[RunningStack]:
    with short_directory() as directory:
        async with running_stack(directory / "data") as running:
            yield running


@pytest.fixture
async def hf(stack: RunningStack) -> AsyncIterator[Holdfast]:
    async with Holdfast(stack.url, stack.token) as client:
        yield client
