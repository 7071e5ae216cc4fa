"""The data directory is found without the settings just as with them."""

from __future__ import annotations

from pathlib import Path

import pytest

from stack import location
from stack.location import find_data_dir
from stack.settings import load_settings


@pytest.fixture
def project(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setattr(location, "_CHECKOUT", tmp_path / "no checkout")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HOLDFAST_DATA_DIR", raising=False)
    return tmp_path


@pytest.mark.parametrize(
    ("environment", "dotenv", "expected"),
    [
        ({}, None, ".holdfast"),
        ({}, "", ".holdfast"),
        ({}, "HOLDFAST_DATA_DIR=there\n", "there"),
        ({}, "holdfast_data_dir='a place' # mine\n", "a place"),
        ({}, "export HOLDFAST_DATA_DIR=${HOLDFAST_NOWHERE:-there}\n", "there"),
        ({}, "HOLDFAST_DATA_DIR=\n", ".holdfast"),
        ({}, "HOLDFAST_DATA_DIR\n", ".holdfast"),
        ({"HOLDFAST_DATA_DIR": "here"}, "HOLDFAST_DATA_DIR=there\n", "here"),
        ({"Holdfast_Data_Dir": "here"}, None, "here"),
        ({"HOLDFAST_DATA_DIR": ""}, "HOLDFAST_DATA_DIR=there\n", "there"),
        ({"HOLDFAST_DATA_DIR": "/far/../away"}, None, "/away"),
        ({"HOLDFAST_DATA_DIR": "~/mine", "HOME": "/home/me"}, None, "/home/me/mine"),
    ],
)
def test_the_data_directory_is_the_one_of_the_settings(
    project: Path,
    monkeypatch: pytest.MonkeyPatch,
    environment: dict[str, str],
    dotenv: str | None,
    expected: str,
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    if dotenv is not None:
        (project / ".env").write_text(dotenv)
    assert find_data_dir() == project / expected
    assert load_settings().data == find_data_dir()
