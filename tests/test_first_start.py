"""The secrets of the compose stack: made once, each for its reader alone."""

from __future__ import annotations

import importlib.util
import json
import os
from pathlib import Path
from types import ModuleType

import pytest

from tests.conftest import missing

SCRIPT = Path(__file__).parent.parent / "docker" / "first_start.py"
READERS = ("api", "sidecar", "engine", "postgres", "seaweedfs")


@pytest.fixture
def first_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    if os.geteuid() != 0:
        missing("root", "giving files to another user needs root")
    spec = importlib.util.spec_from_file_location("first_start", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    for reader in READERS:
        (tmp_path / reader).mkdir()
    monkeypatch.setattr(module, "SECRETS", tmp_path)
    monkeypatch.setattr(module, "GIVEN_TOKEN", tmp_path / "given")
    return module


def contents(place: Path) -> dict[str, str]:
    found = (path for reader in READERS for path in (place / reader).iterdir())
    return {str(path.relative_to(place)): path.read_text() for path in found}


def test_a_second_start_changes_no_secret(first_start: ModuleType, tmp_path: Path) -> None:
    first_start.make_secrets()
    made = contents(tmp_path)
    first_start.make_secrets()
    assert contents(tmp_path) == made


def test_a_secret_is_readable_by_its_reader_alone(first_start: ModuleType, tmp_path: Path) -> None:
    first_start.make_secrets()
    for name in contents(tmp_path):
        found = (tmp_path / name).stat()
        wanted = 0 if name.startswith(("postgres/", "engine/")) else 1000
        assert (found.st_mode & 0o777, found.st_uid) == (0o400, wanted), name


def test_readers_of_one_secret_agree(first_start: ModuleType, tmp_path: Path) -> None:
    first_start.make_secrets()
    made = contents(tmp_path)
    for name in ("holdfast_sidecar_secret", "holdfast_s3_access_key", "holdfast_s3_secret_key"):
        assert made[f"api/{name}"] == made[f"sidecar/{name}"]
    assert made["engine/holdfast_docker_stack"] == made["sidecar/holdfast_docker_stack"]
    assert made["postgres/password"].strip() in made["api/holdfast_database_url"]
    key = json.loads(made["seaweedfs/s3.json"])["identities"][0]["credentials"][0]
    assert key["accessKey"] == made["api/holdfast_s3_access_key"].strip()
    assert key["secretKey"] == made["api/holdfast_s3_secret_key"].strip()


def test_a_given_token_wins_and_nothing_given_keeps_it(
    first_start: ModuleType, tmp_path: Path
) -> None:
    first_start.make_secrets()
    (tmp_path / "given").write_text("a token of my own\n")
    first_start.make_secrets()
    (tmp_path / "given").write_text("\n")
    first_start.make_secrets()
    assert contents(tmp_path)["api/holdfast_api_token"] == "a token of my own\n"
