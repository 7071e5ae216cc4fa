"""How the audit of packages judges what pip-audit says."""

from __future__ import annotations

from typing import Any

from scripts.audit import told

FINE = {"name": "a", "version": "1", "vulns": []}
SKIPPED = {"name": "b", "skip_reason": "not found on PyPI"}
HOLED = {"name": "c", "version": "2", "vulns": [{"id": "PYSEC-1", "fix_versions": ["3"]}]}


def judge(*packages: dict[str, Any]) -> tuple[int, str]:
    code, lines = told({"dependencies": list(packages)})
    return code, "\n".join(lines)


def test_a_known_vulnerability_is_a_failure_that_names_the_version_to_take() -> None:
    code, said = judge(FINE, HOLED, SKIPPED)
    assert code == 1
    assert "c 2: PYSEC-1, fixed in 3" in said
    assert "2 of 3 packages" in said


def test_packages_that_could_not_be_looked_up_are_not_called_safe() -> None:
    code, said = judge(SKIPPED)
    assert code == 0
    assert "not run" in said
    assert judge() == (0, "pip-audit: not run: no package could be looked up (the lock is empty)")


def test_packages_without_a_vulnerability_pass() -> None:
    assert judge(FINE) == (0, "pip-audit: 1 of 1 packages looked up")
