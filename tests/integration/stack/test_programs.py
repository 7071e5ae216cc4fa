"""Programs that the stack finds on this machine."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from stack.errors import BinaryMissing
from stack.install.binaries import find_bwrap, find_node, find_postgres, find_weed, version_of
from stack.install.bubblewrap import install_bwrap, runnable_bwrap
from stack.settings import Settings
from tests.support.stack.fixtures import MakeSettings


def test_the_programs_of_the_wheels_run() -> None:
    settings = Settings()
    assert "PostgreSQL" in version_of(str(find_postgres() / "postgres"), "--version")
    assert "bubblewrap" in version_of(str(find_bwrap(settings)), "--version")
    assert "version" in version_of(str(find_weed(settings)), "version")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root starts boxes under other uids")
def test_root_gets_a_bubblewrap_that_other_users_can_run(
    stack_dir: Path, make_settings: MakeSettings
) -> None:
    stack_dir.chmod(0o755)
    settings = make_settings(cache=stack_dir / "cache")
    copy = install_bwrap(settings)
    assert copy.is_relative_to(stack_dir)
    assert runnable_bwrap(settings) == install_bwrap(settings) == copy
    answer = subprocess.run(
        (copy, "--version"), user=65534, group=65534, extra_groups=(), capture_output=True
    )
    assert answer.stdout.startswith(b"bubblewrap 0.11")
    assert [path.name for path in (stack_dir / "cache" / "bubblewrap").iterdir()] == [
        copy.parents[2].name
    ]


def test_a_node_that_is_too_old_is_named_with_its_version(
    tmp_path: Path, make_settings: MakeSettings
) -> None:
    for name in ("node", "npm"):
        (tmp_path / name).write_text("#!/bin/sh\necho v18.1.0\n")
        (tmp_path / name).chmod(0o755)
    with pytest.raises(BinaryMissing, match=r"node is v18\.1\.0"):
        find_node(make_settings(node=tmp_path / "node"))


def test_a_program_that_is_not_there_is_an_empty_version() -> None:
    assert version_of("/nonexistent/program") == ""
    assert version_of(sys.executable, "-c", "raise SystemExit(1)") == ""
