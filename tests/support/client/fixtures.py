"""The client against a server of its own."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

from client import Holdfast, Patience
from tests.support.client.wire_server import TOKEN, FakeApi, serve

QUICK = Patience(tries=5, first=0.001, longest=0.01)


@pytest.fixture(scope="session")
def server() -> Iterator[FakeApi]:
    with serve() as running:
        yield running


@pytest.fixture
def api(server: FakeApi) -> FakeApi:
    server.reset()
    return server


@pytest.fixture
async def hf(api: FakeApi) -> AsyncIterator[Holdfast]:
    async with Holdfast(api.url, TOKEN, patience=QUICK) as client:
        yield client
