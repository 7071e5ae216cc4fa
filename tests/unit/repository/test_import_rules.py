"""The architecture, as imports: who may know whom."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.paths import ROOT
from tests.support.sources import list_nodes

PACKAGES = ("api", "client", "contracts", "emulators", "sidecar", "stack")

# package or module prefix -> our packages it may import besides itself
MAY_IMPORT = {
    "contracts": (),
    "emulators": (),
    "api": ("contracts",),
    "client": ("contracts",),
    "stack": ("contracts", "client"),
    "sidecar": ("contracts",),
    "sidecar.boxhost": (
        "contracts",
        "sidecar.record_files",
        "sidecar.sockets",
        "sidecar.tasks",
    ),
    "sidecar.providers": ("contracts", "sidecar.boxhost", "sidecar.tasks"),
    "sidecar.workspace": (
        "contracts",
        "sidecar.boxhost",
        "sidecar.providers.base",
        "sidecar.tasks",
    ),
    "sidecar.harnesses": ("contracts", "sidecar.providers.base", "sidecar.tasks"),
    "sidecar.gateway": ("contracts", "sidecar.record_files", "sidecar.sockets"),
    "sidecar.engine_proxy": ("contracts", "sidecar.sockets"),
}


def modules(prefix: str) -> Iterator[Path]:
    for path in sorted((ROOT / prefix.replace(".", "/")).rglob("*.py")):
        if "tests" not in path.parts:
            yield path


@functools.cache
def imports(path: Path) -> frozenset[str]:
    found = set()
    for node in list_nodes(path):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            module = node.module or ""
            found |= {f"{module}.{alias.name}" for alias in node.names}
    return frozenset(found)


def ours(name: str) -> bool:
    return name.split(".")[0] in PACKAGES


def below(name: str, prefix: str) -> bool:
    return name == prefix or name.startswith(f"{prefix}.")


@pytest.mark.parametrize("package", MAY_IMPORT)
def test_a_package_knows_only_whom_it_may(package: str) -> None:
    allowed = (package, *MAY_IMPORT[package])
    wrong = [
        f"{path.relative_to(ROOT)} imports {name}"
        for path in modules(package)
        for name in imports(path)
        if ours(name) and not any(below(name, prefix) for prefix in allowed)
    ]
    assert wrong == []


@pytest.mark.parametrize("part", ["boxhost", "providers", "workspace", "harnesses"])
def test_the_parts_of_the_sidecar_know_neither_fastapi_nor_settings(part: str) -> None:
    for path in modules(f"sidecar.{part}"):
        if path.name == "__main__.py":
            continue
        names = imports(path)
        assert not any(below(name, "fastapi") for name in names), path
        assert not any(below(name, "pydantic_settings") for name in names), path


def test_only_the_db_package_of_the_api_speaks_to_postgres() -> None:
    wrong = [
        str(path.relative_to(ROOT))
        for package in PACKAGES
        for path in modules(package)
        if any(below(name, "asyncpg") for name in imports(path))
        and not below(".".join(path.relative_to(ROOT).parts[:2]), "api.db")
    ]
    assert wrong == []


def test_nothing_reads_the_environment_but_settings() -> None:
    wrong = [
        str(path.relative_to(ROOT))
        for package in ("api", "client", "contracts", "sidecar")
        for path in modules(package)
        if path.name not in ("settings.py", "enter.py")
        and ("os.environ" in path.read_text() or "os.getenv" in path.read_text())
    ]
    assert wrong == []
