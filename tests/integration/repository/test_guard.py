"""The guard of the fast tier, and what CI makes of a skip: a run of pytest of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.paths import ROOT

GUARDED = """
from tests.support.no_processes import pytest_runtest_call, pytest_runtest_setup
"""
REPORTED = """
pytest_plugins = ["tests.support.report"]
"""


def run_pytest(directory: Path, conftest: str, test: str, **env: str) -> tuple[int, str]:
    (directory / "conftest.py").write_text(conftest)
    (directory / "test_it.py").write_text(test)
    ended = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(directory)],
        cwd=directory,
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), **env},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return ended.returncode, ended.stdout


@pytest.mark.parametrize(
    "start",
    [
        "subprocess.run(['true'])",
        "asyncio.run(asyncio.create_subprocess_exec('true'))",
        "os.system('true')",
        "os._exit(0) if os.fork() == 0 else os.wait()",
    ],
)
@pytest.mark.parametrize("swallowed", [False, True], ids=["seen", "swallowed"])
def test_a_test_of_the_fast_tier_that_starts_a_process_fails(
    tmp_path: Path, start: str, swallowed: bool
) -> None:
    body = f"with contextlib.suppress(BaseException): {start}" if swallowed else start
    test = f"import asyncio, contextlib, os, subprocess\ndef test_it():\n    {body}\n"
    code, said = run_pytest(tmp_path, GUARDED, test)
    assert (code, "tests/unit starts no process" in said) == (1, True), said


@pytest.mark.parametrize(("env", "code"), [({}, 0), ({"CI": "true"}, 1)], ids=["here", "in CI"])
def test_a_skip_that_is_not_known_fails_in_ci(
    tmp_path: Path, env: dict[str, str], code: int
) -> None:
    test = "import pytest\ndef test_it(): pytest.skip('no luck')\ndef test_other(): pass\n"
    ended, said = run_pytest(tmp_path, REPORTED, test, **env)
    assert (ended, "no luck" in said) == (code, True), said
