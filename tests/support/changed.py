"""`python -m tests.support.changed [BASE]`: the tests that the files changed since BASE can affect.

A test file is affected by every module that it imports, however indirectly. A folder whose tests
start programs is affected by all that these programs import, and by their whole packages: some
modules are started as scripts or imported by name. What is neither is in a table.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from fnmatch import fnmatch

import grimp

from tests.support.paths import ROOT

PACKAGES = ("api", "bench", "client", "contracts", "emulators", "sidecar", "stack", "tests")
EVERYTHING = "tests"
STACK = (
    "api.__main__",
    "sidecar.__main__",
    "sidecar.boxhost.__main__",
    "sidecar.gateway.__main__",
    "sidecar.stop_all",
    "stack.cli",
    "stack.commands",
)
EMULATED = ("emulators.__main__", "sidecar.boxhost.__main__")

# Folder -> the programs that its tests start.
PROGRAMS: Mapping[str, tuple[str, ...]] = {
    "tests/e2e": STACK,
    "tests/ui": STACK,
    "tests/compose": (*STACK, *EMULATED, "sidecar.engine_proxy.__main__"),
    "tests/clouds": (*STACK, *EMULATED),
    "tests/integration/api": ("api.__main__", "client.trials"),
    "tests/integration/boxhost": ("sidecar.boxhost.__main__",),
    "tests/integration/client": ("stack.commands",),
    "tests/integration/conformance": EMULATED,
    "tests/integration/egress": ("sidecar.gateway.__main__",),
    "tests/integration/emulators": EMULATED,
    "tests/integration/engine_proxy": ("sidecar.engine_proxy.__main__",),
    "tests/integration/gateway": ("sidecar.gateway.__main__",),
    "tests/integration/hostile": STACK,
    "tests/integration/providers": EMULATED,
    "tests/integration/runs": ("sidecar.gateway.__main__",),
    "tests/integration/stack": (*STACK, *EMULATED),
    "tests/integration/workspace": ("sidecar.boxhost.__main__",),
}

SANDBOXES = (
    "tests/clouds",
    "tests/compose",
    "tests/e2e",
    "tests/integration/boxd",
    "tests/integration/conformance",
    "tests/integration/emulators",
    "tests/integration/providers",
    "tests/integration/sandbox_image",
)

# Pattern of files that nobody imports -> what they affect. The first that fits counts.
FILES: Mapping[str, tuple[str, ...]] = {
    "*.md": ("tests/unit",),
    "docs/*": ("tests/unit",),
    "api/static/*": ("tests/ui", "tests/integration/api", "tests/unit"),
    "api/db/migrations/*": ("tests/integration", "tests/e2e"),
    "tests/ui/*": ("tests/ui",),
    "tests/integration/api/*": ("tests/integration/api",),
    "sandbox-image/*": SANDBOXES,
    "harnesses/*": ("tests/e2e", "tests/clouds", "tests/integration/sandbox_image", "tests/unit"),
    "docker/*": ("tests/compose", "tests/unit"),
    "docker-compose.yml": ("tests/compose", "tests/unit"),
    "seaweedfs/*": ("tests/compose", "tests/unit"),
    ".env.example": ("tests/unit",),
    "scripts/*": ("tests/compose", "tests/unit"),
    "matrix_test.py": ("tests/e2e", "tests/clouds", "tests/integration/client", "tests/unit"),
    "LICENSE": (),
    ".gitignore": (),
}


class Affected:
    """What a change of a file affects, by the imports of this checkout."""

    def __init__(self) -> None:
        self._graph = grimp.build_graph(*PACKAGES, cache_dir=None)
        self._programs = {
            folder: set[str]().union(*map(self._parts, programs))
            for folder, programs in PROGRAMS.items()
        }

    def by(self, path: str) -> set[str]:
        """Paths to hand to pytest."""
        module = path.removesuffix(".py").replace("/", ".").removesuffix(".__init__")
        if path.endswith(".py") and module in self._graph.modules:
            return self._by_module(path, module)
        if path.endswith("conftest.py"):
            return {path.removesuffix("/conftest.py")}
        for pattern, affected in FILES.items():
            if fnmatch(path, pattern):
                return {*affected}
        return {EVERYTHING}

    def _by_module(self, path: str, module: str) -> set[str]:
        if path.endswith("conftest.py"):
            return {path.removesuffix("/conftest.py")}
        downstream = {module, *self._graph.find_downstream_modules(module)}
        tests = {_path(each) for each in downstream if each.rpartition(".")[2].startswith("test_")}
        folders = {_path(each)[: -len("/conftest.py")] for each in downstream if _is_conftest(each)}
        programs = {folder for folder, parts in self._programs.items() if module in parts}
        return tests | folders | programs

    def _parts(self, program: str) -> set[str]:
        package = program.rpartition(".")[0]
        of_package = {each for each in self._graph.modules if f"{each}.".startswith(f"{package}.")}
        return of_package | {program} | self._graph.find_upstream_modules(program)


def _path(module: str) -> str:
    return f"{module.replace('.', '/')}.py"


def _is_conftest(module: str) -> bool:
    return module.startswith("tests.") and module.endswith(".conftest")


def simplify(paths: Iterable[str]) -> list[str]:
    """Without what is inside another of them."""
    kept: list[str] = []
    for path in sorted(paths):
        if not any(path.startswith(f"{other}/") for other in kept):
            kept.append(path)
    return kept


def changed_files(base: str) -> Iterator[str]:
    """Since `base`, uncommitted and new ones among them."""
    for command in (
        ["git", "diff", "--name-only", "--no-renames", base],
        ["git", "ls-files", "--others", "--exclude-standard"],
    ):
        told = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
        yield from told.stdout.splitlines()


def main() -> None:
    base = sys.argv[1] if len(sys.argv) > 1 else "HEAD"
    affected = Affected()
    found = {path for file in changed_files(base) for path in affected.by(file)}
    existing = [path for path in simplify(found) if (ROOT / path).exists()]
    sys.stdout.write(" ".join(existing) + "\n")


if __name__ == "__main__":
    main()
