"""A stage of an image that takes single files of ours takes all that these import."""

from __future__ import annotations

import re
from pathlib import Path

from tests.support.paths import ROOT
from tests.unit.repository.test_import_rules import imports, ours


def module_file(name: str) -> Path | None:
    """The file of `package.module` or `package.module.name`."""
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        path = ROOT.joinpath(*parts[:length])
        for found in (path.with_suffix(".py"), path / "__init__.py"):
            if found.is_file():
                return found
    return None


def needed(start: Path) -> set[Path]:
    """All of our files that a program imports, one through the other."""
    found, todo = set(), [start]
    while todo:
        path = todo.pop()
        names = (name for name in imports(path) if ours(name))
        for each in filter(None, map(module_file, names)):
            if each not in found:
                found.add(each)
                todo.append(each)
    return found


def test_the_image_of_sandboxes_is_built_with_all_that_installs_the_harnesses() -> None:
    dockerfile = (ROOT / "sandbox-image" / "Dockerfile").read_text()
    copied: set[Path] = set()
    for line in re.findall(r"^COPY ((?:contracts|stack)/.*)$", dockerfile, flags=re.MULTILINE):
        for word in line.split()[:-1]:
            path = ROOT / word
            copied |= set(path.rglob("*.py")) if path.is_dir() else {path}
    wanted = needed(ROOT / "sandbox-image" / "install_tree.py")
    assert wanted
    assert sorted(str(path.relative_to(ROOT)) for path in wanted - copied) == []
