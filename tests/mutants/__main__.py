"""Try every mutant in a copy of the tree: `python -m tests.mutants [words of a name]`.

Exits with 1 when one survives, cannot be made, or its tests fail without it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from tests.mutants.table import MUTANTS, Mutant
from tests.support.paths import ROOT

FAILED = 1  # pytest's exit code when tests ran and some failed
TRY_SECONDS = 900


def copy_tree(to: Path) -> None:
    """All that git would have, changed or not; the installed packages are shared."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=True,
    ).stdout
    for name in filter(None, listed.decode().split("\0")):
        source, target = ROOT / name, to / name
        if source.is_symlink() or source.is_file():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target, follow_symlinks=False)
    if not (to / ".venv").exists():
        (to / ".venv").symlink_to((ROOT / ".venv").resolve())


def run_tests(tree: Path, tests: Sequence[str]) -> tuple[int, str]:
    """pytest's exit code, and what it said last."""
    argv = [sys.executable, "-m", "pytest", "-n0", "-q", "-x", "-p", "no:cacheprovider", *tests]
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    ran = subprocess.run(
        argv,
        cwd=tree,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=TRY_SECONDS,
        check=False,
    )
    return ran.returncode, ran.stdout.decode(errors="replace")[-2000:]


def apply(mutant: Mutant, tree: Path) -> str:
    """Change the copy; the text of the file before. Raises: ValueError."""
    place = tree / mutant.path
    text = place.read_text()
    if text.count(mutant.before) != 1:
        raise ValueError(f"its text is {text.count(mutant.before)} times in {mutant.path}")
    place.write_text(text.replace(mutant.before, mutant.after))
    return text


def try_mutant(mutant: Mutant, tree: Path) -> str:
    """Why it is not caught; nothing when it is."""
    try:
        text = apply(mutant, tree)
    except ValueError as error:
        return str(error)
    try:
        code, said = run_tests(tree, mutant.tests)
    finally:
        (tree / mutant.path).write_text(text)
    if code == FAILED:
        return ""
    return "survived" if code == 0 else f"pytest exited with {code}:\n{said}"


def main(words: Sequence[str]) -> int:
    chosen = [m for m in MUTANTS if all(word in f"{m.name} {m.path}" for word in words)]
    wrong = 0
    with tempfile.TemporaryDirectory(prefix="mutants-") as directory:
        tree = Path(directory)
        copy_tree(tree)
        tests = sorted({test for mutant in chosen for test in mutant.tests})
        code, said = run_tests(tree, tests)
        if code != 0:
            _say(f"the tests fail without any mutant:\n{said}")
            return 1
        for mutant in chosen:
            started = time.monotonic()
            why = try_mutant(mutant, tree)
            wrong += bool(why)
            _say(f"{why or 'caught':10} {time.monotonic() - started:5.0f} s  {mutant.name}")
    _say(f"{len(chosen) - wrong} of {len(chosen)} mutants caught")
    return 1 if wrong else 0


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
