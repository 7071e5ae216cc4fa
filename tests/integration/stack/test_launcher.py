"""A program of the harness tree whose version a launcher tells."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from stack.errors import InstallFailed
from stack.install.binaries import find_node
from stack.install.progress import Silent
from stack.install.tree import TreeSpec, harness_tree, install_tree
from stack.settings import Settings
from tests.integration.stack.test_tree import tiny

# Tells its version as pi does, on stderr, and else what it was started with.
PROGRAM = """#!/bin/sh
[ "$1" = --version ] && {{ echo started >> {log}; echo {version} >&2; exit; }}
echo "$0" "$#" "$@"
exit 7
"""


def launched(home: Path, version: str = "1.0.0") -> TreeSpec:
    program = PROGRAM.format(log=home / "log", version=version)
    return replace(tiny(home, program), slow_to_tell={"tiny": "tiny"})


def test_a_launcher_tells_the_version_and_becomes_the_program_for_all_else(tmp_path: Path) -> None:
    node = find_node(Settings())
    made = install_tree(launched(tmp_path), tmp_path / "cache", node, Silent())
    assert made.versions == {"tiny": "1.0.0"}
    started = (tmp_path / "log").read_text()
    # boxes see the tree at another path, and find the program on their PATH
    moved = made.path.rename(tmp_path / "else where")
    environment = {"PATH": f"{moved}/bin:/usr/bin:/bin"}

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        command = ("/usr/bin/env", "tiny", *words)
        return subprocess.run(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )

    told = run("--version")
    assert (told.stdout, told.stderr) == ("", "1.0.0\n")
    assert (tmp_path / "log").read_text() == started, "the program itself was started"
    for words in (["--mode", "a b", ""], ["--version", "x"][::-1], []):
        done = run(*words)
        assert done.returncode == 7
        shown = " ".join((f"{moved}/bin/../behind/tiny", str(len(words)), *words))
        assert done.stdout == f"{shown}\n"
    assert run("--version", "--verbose").stderr == "1.0.0\n"
    assert (tmp_path / "log").read_text() != started, "with more words it is the program's to say"


def test_a_launcher_that_would_tell_another_version_is_not_installed(tmp_path: Path) -> None:
    spec = launched(tmp_path, version="2.0.0")
    with pytest.raises(InstallFailed, match=r"'2\.0\.0\\n', and its launcher '1\.0\.0"):
        install_tree(spec, tmp_path / "cache", find_node(Settings()), Silent())


def test_a_tree_with_a_launcher_has_another_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = launched(tmp_path)
    plain = replace(spec, slow_to_tell={})
    assert spec.key != plain.key
    before = spec.key
    monkeypatch.setattr("stack.install.tree._LAUNCHER", "#!/bin/sh\n")
    assert spec.key != before


def test_pi_has_a_launcher() -> None:
    assert "pi" in harness_tree().slow_to_tell
