"""How many examples hypothesis tries of each property."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

# The same examples every time, and no more than a run has time for.
settings.register_profile(
    "hostile",
    max_examples=80,
    derandomize=True,
    deadline=None,
    # a machine that is busy is no fault of the test's; fixtures here are not changed by a test
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
settings.load_profile("hostile")
