"""Every kind of fault once, in a few rounds: the long run is `make chaos`."""

from __future__ import annotations

import logging
import os

import pytest

from tests.chaos.run import Options, run_chaos
from tests.chaos.short_run import PER_ROUND, ROUNDS, SEED

log = logging.getLogger(__name__)


@pytest.mark.timeout(400)
@pytest.mark.stack
@pytest.mark.harness
async def test_a_short_run_loses_nothing(fuse: None) -> None:
    options = Options(ROUNDS, SEED, lanes=3, per_round=PER_ROUND, light=True)
    report = await run_chaos(options, log.info)
    assert report.rounds == ROUNDS
    assert report.claims > ROUNDS, "nothing was asked of the files"
    assert report.s3_requests > 0, "the services did not go through the proxy"
    assert report.left_out == {} or os.geteuid() != 0
    assert report.found == [], "\n".join(report.lines())
