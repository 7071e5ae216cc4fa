"""Which tests `make test-changed` runs."""

from __future__ import annotations

import pytest

from tests.support.changed import FILES, PROGRAMS, Affected, simplify
from tests.support.paths import ROOT


@pytest.fixture(scope="module")
def affected() -> Affected:
    return Affected()


@pytest.mark.parametrize(
    ("changed", "test"),
    [
        ("tests/unit/client/test_errors.py", "tests/unit/client/test_errors.py"),
        ("tests/unit/client/conftest.py", "tests/unit/client"),
        ("contracts/errors.py", "tests/unit/client/test_errors.py"),
        ("tests/support/client/wire_server.py", "tests/unit/client"),
        ("api/db/leases.py", "tests/integration/api"),
        ("api/static/app.js", "tests/ui"),
        ("sidecar/boxhost/walker.py", "tests/integration/boxhost"),  # started as a script
        ("emulators/e2b/control.py", "tests/integration/providers"),  # imported by name
        ("sidecar/runs/turn.py", "tests/e2e"),
        ("docker-compose.yml", "tests/compose"),
        ("sandbox-image/boxd/children.py", "tests/integration/boxd"),
        ("uv.lock", "tests"),
        ("a/file/of/a/new/kind", "tests"),
    ],
)
def test_a_change_runs_the_tests_that_it_can_break(
    affected: Affected, changed: str, test: str
) -> None:
    assert test in affected.by(changed)


def test_a_change_of_one_test_runs_that_file_alone(affected: Affected) -> None:
    assert affected.by("tests/unit/client/test_errors.py") == {"tests/unit/client/test_errors.py"}


def test_what_is_inside_a_folder_is_not_named_beside_it() -> None:
    assert simplify(["tests/e2e/test_a.py", "tests/e2e", "tests/e2eb"]) == [
        "tests/e2e",
        "tests/e2eb",
    ]


def test_every_folder_of_the_tables_is_there() -> None:
    named = {*PROGRAMS, *(folder for folders in FILES.values() for folder in folders)}
    assert [folder for folder in sorted(named) if not (ROOT / folder).is_dir()] == []
