"""A freeze of chains of forks: nothing is written after it, and everything goes on."""

from __future__ import annotations

import logging
import os

import pytest

from sidecar.providers.base import Sandbox
from tests.integration.conformance.conftest import Subject
from tests.support.fork_chains import Chains, Tries, build_chain

log = logging.getLogger(__name__)

# Each freeze that there is: the box-host's is that of local, the other clouds' is E2B's.
WAYS = ("local", "docker", "e2b")
ENGINES = ("bare",)
# `make freezes` tries more often.
FREEZES = int(os.environ.get("HOLDFAST_FREEZES", "3"))


@pytest.fixture(scope="session")
def chain(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return build_chain(tmp_path_factory.mktemp("chain"))


@pytest.mark.parametrize("count", [1, 4, 16])
async def test_chains_of_forks_stand_still_and_go_on(
    subject: Subject, sandbox: Sandbox, chain: bytes, count: int
) -> None:
    chains = Chains(sandbox, count, seconds=60 + 10 * FREEZES)
    await chains.start(chain)
    found = Tries()
    try:
        for _ in range(FREEZES):
            await found.freeze(chains)
    finally:
        await chains.stop()
        log.info("%s, %d chains: %s", subject.way, count, found)
    assert found == Tries(tries=FREEZES)
