"""Settings that touch nothing but the test's own directories."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from stack.install.tree import find_tree, harness_tree
from stack.settings import Settings, load_settings
from tests.support.requirements import missing
from tests.support.services import short_directory

MakeSettings = Callable[..., Settings]


@pytest.fixture
def make_settings(tmp_path: Path, stack_dir: Path) -> MakeSettings:
    """Settings of a stack in the test's directory; nothing from the environment's HOLDFAST_*."""

    def make(**given: object) -> Settings:
        places: dict[str, object] = {
            "data_dir": tmp_path / "data",
            "run_dir": stack_dir / "run",
            "cache": tmp_path / "cache",
            "offline": True,
            "ci": None,
        }
        return Settings.model_validate(places | given)

    return make


@pytest.fixture
def stack_dir() -> Iterator[Path]:
    """A directory with a path short enough for unix sockets."""
    with short_directory() as path:
        yield path


@pytest.fixture(scope="session")
def harness_dir() -> Path:
    """The harness tree of whoever runs the tests: `make test` has installed it."""
    tree = find_tree(harness_tree(), load_settings().cache_root)
    if tree is None:
        missing("harnesses", "the harness tree is not installed: run `holdfast install`")
    return tree
