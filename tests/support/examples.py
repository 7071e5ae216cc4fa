"""Which examples hypothesis tries of each property, by the profile in HYPOTHESIS_PROFILE.

`fixed` is the default: the same examples in every run. `random` tries other ones each time, more of
them, and keeps those that failed in .hypothesis, to try them first in the next run. `long` does so
for state machines, whose examples take seconds each: fewer of them, with more steps.
"""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings
from hypothesis.database import DirectoryBasedExampleDatabase

from tests.support.paths import ROOT

PROFILE = "HYPOTHESIS_PROFILE"
EXAMPLES = "HYPOTHESIS_EXAMPLES"  # of each machine, in the profile `long`

COMMON = settings(
    deadline=None,
    # a machine that is busy is no fault of the test's; fixtures here are not changed by a test
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
settings.register_profile("fixed", COMMON, max_examples=80, derandomize=True)
RANDOM = settings(
    COMMON,
    max_examples=1000,
    derandomize=False,
    print_blob=True,
    database=DirectoryBasedExampleDatabase(ROOT / ".hypothesis" / "examples"),
)
settings.register_profile("random", RANDOM)
settings.register_profile(
    "long",
    RANDOM,
    max_examples=int(os.environ.get(EXAMPLES, "100")),
    stateful_step_count=40,
)
settings.load_profile(os.environ.get(PROFILE, "fixed"))
