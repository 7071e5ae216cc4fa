"""The processes of a command are found by their environment, also in the middle of an exec."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from types import ModuleType

import pytest

from tests.support.paths import ROOT

MODULES = ("asked", "threads", "living")


@pytest.fixture
def living(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    monkeypatch.syspath_prepend(str(ROOT / "sandbox-image" / "boxd"))
    yield import_module("living")
    for name in MODULES:
        sys.modules.pop(name)


@pytest.fixture
def sleeper() -> Iterator[int]:
    with subprocess.Popen(["sleep", "600"], env={"MARK": "x"}) as process:
        yield process.pid
        process.kill()


async def test_a_process_without_an_environment_is_looked_at_again(
    living: ModuleType, sleeper: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[int] = []
    read = living._environment

    def read_late(pid: int) -> list[bytes] | None:
        looks.append(pid)
        return [b""] if looks.count(pid) < 3 else read(pid)

    monkeypatch.setattr(living, "_environment", read_late)
    found = await living.Reader().marked(b"MARK=x", session=-1)
    assert [each.pid for each in found] == [sleeper]
