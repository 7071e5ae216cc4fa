"""The dashboard at the end of a run."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.support.known_skips import KNOWN, unknown_skips
from tests.support.report import Dashboard, folder_of, render

GEESEFS = "no geesefs on PATH"


def report_of(
    nodeid: str, when: str, seconds: float, skipped: str | None = None
) -> pytest.TestReport:
    made = pytest.TestReport(
        nodeid=nodeid,
        location=("", None, ""),
        keywords={},
        outcome="passed" if skipped is None else "skipped",
        longrepr=None if skipped is None else ("file", 1, f"Skipped: {skipped}"),
        when=when,  # type: ignore[arg-type]
        duration=seconds,
    )
    if when == "teardown":
        made.user_properties = [("cpu", 0.25), ("programs", {"weed": 2})]
    return made


def test_a_run_is_summed_up_by_folder_test_program_and_skip(tmp_path: Path) -> None:
    dashboard = Dashboard(tmp_path)
    for phase, seconds in (("setup", 1.0), ("call", 2.0), ("teardown", 0.5)):
        test = "tests/integration/api/test_a.py::test_b[c]@tests/integration/api/test_a.py"
        dashboard.pytest_runtest_logreport(report_of(test, phase, seconds))
    dashboard.pytest_runtest_logreport(report_of("tests/e2e/test_x.py::y", "setup", 0.1, GEESEFS))
    figures = dashboard.figures()
    assert figures["folders"]["integration/api"] == {"tests": 1, "seconds": 3.5, "cpu": 0.25}
    assert figures["slowest"]["tests/integration/api/test_a.py::test_b[c]"] == 3.5
    assert figures["programs"] == {"weed": 2}
    assert figures["skips"] == {GEESEFS: 1}


@pytest.mark.parametrize(
    ("before", "now", "marked"),
    [(100.0, 149.0, False), (100.0, 151.0, True), (1.0, 20.0, False), (1.0, 22.0, True)],
)
def test_a_folder_that_became_slower_is_marked(
    tmp_path: Path, before: float, now: float, marked: bool
) -> None:
    dashboard = Dashboard(tmp_path)
    dashboard.pytest_runtest_logreport(report_of("tests/e2e/test_x.py::test_y", "call", now))
    shown = render(dashboard.figures(), {"folders": {"e2e": {"seconds": before}}})
    assert any("SLOWER" in line for line in shown) == marked


@pytest.mark.parametrize(
    ("test", "folder"),
    [
        ("tests/e2e/test_turns.py::test_x", "e2e"),
        ("tests/e2e/operate/test_backup.py::test_x", "e2e/operate"),
        ("tests/integration/api/test_x.py::test_y[a/b::c]", "integration/api"),
    ],
)
def test_a_folder_is_a_tier_or_a_part_of_one(test: str, folder: str) -> None:
    assert folder_of(test) == folder


def test_a_skip_is_known_by_its_reason_and_up_to_its_number() -> None:
    most = KNOWN[GEESEFS]
    assert unknown_skips({GEESEFS: most}) == {}
    assert unknown_skips({GEESEFS: most + 2, "no luck": 1}) == {GEESEFS: 2, "no luck": 1}
    assert unknown_skips(Counter({"e2b declares that it cannot freeze": 1})) == {}
