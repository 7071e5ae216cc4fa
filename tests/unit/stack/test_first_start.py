"""The secrets of the compose stack: made once, each for its reader alone."""

from __future__ import annotations

import importlib.util
import json
import os
from pathlib import Path
from types import ModuleType

import pytest

from sidecar.account_settings import AccountSettings
from tests.support.paths import ROOT
from tests.support.requirements import missing

SCRIPT = ROOT / "docker" / "first_start.py"
READERS = ("api", "gate", "gateway", "sidecar", "engine", "postgres", "seaweedfs")


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
    (tmp_path / "given").mkdir()
    monkeypatch.setattr(module, "GIVEN", tmp_path / "given")
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
    assert made["gateway/holdfast_gateway_secret"] == made["sidecar/holdfast_gateway_secret"]
    assert made["engine/holdfast_docker_stack"] == made["sidecar/holdfast_docker_stack"]
    assert made["postgres/password"].strip() in made["api/holdfast_database_url"]
    key = json.loads(made["seaweedfs/s3.json"])["identities"][0]["credentials"][0]
    assert key["accessKey"] == made["api/holdfast_s3_access_key"].strip()
    assert key["secretKey"] == made["api/holdfast_s3_secret_key"].strip()


def test_a_given_token_wins_and_nothing_given_keeps_it(
    first_start: ModuleType, tmp_path: Path
) -> None:
    first_start.make_secrets()
    (tmp_path / "given" / "api_token").write_text("a token of my own\n")
    first_start.make_secrets()
    (tmp_path / "given" / "api_token").write_text("\n")
    first_start.make_secrets()
    assert contents(tmp_path)["api/holdfast_api_token"] == "a token of my own\n"


def test_a_rotated_token_is_the_apis_alone_and_nothing_else_changes(
    first_start: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first_start.make_secrets()
    before = contents(tmp_path)
    monkeypatch.setattr("sys.argv", ["first_start.py", "rotate"])
    first_start.main()
    after = contents(tmp_path)
    assert {name for name in before if before[name] != after[name]} == {"api/holdfast_api_token"}
    assert len(after["api/holdfast_api_token"].strip()) >= 43
    made = (tmp_path / "api" / "holdfast_api_token").stat()
    assert (made.st_mode & 0o777, made.st_uid) == (0o400, 1000)
    first_start.make_secrets()
    assert contents(tmp_path) == after


def test_a_token_that_is_given_is_not_rotated(first_start: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "given" / "api_token").write_text("a token of my own\n")
    first_start.make_secrets()
    with pytest.raises(SystemExit, match="HOLDFAST_API_TOKEN"):
        first_start.rotate_token()
    assert contents(tmp_path)["api/holdfast_api_token"] == "a token of my own\n"


def test_a_key_from_the_environment_goes_to_its_one_reader_and_goes_again_with_it(
    first_start: ModuleType, tmp_path: Path
) -> None:
    given = {name for names in first_start.KEYS.values() for name in names}
    for name in given:
        (tmp_path / "given" / name).write_text(f"the {name}\n")
    first_start.hand_on_keys()
    handed = {
        f"{reader}/{name}": f"the {name}\n"
        for reader, names in first_start.KEYS.items()
        for name in names
    }
    assert contents(tmp_path) == handed
    assert {(tmp_path / path).stat().st_mode & 0o777 for path in handed} == {0o400}
    for name in given:
        (tmp_path / "given" / name).write_text("\n")
    first_start.hand_on_keys()
    assert contents(tmp_path) == {}


def test_a_service_reads_a_key_that_it_was_handed(first_start: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "given" / "e2b_api_key").write_text("the e2b key\n")
    (tmp_path / "given" / "modal_token_id").write_text("\n")
    first_start.make_secrets()
    first_start.hand_on_keys()
    settings = AccountSettings(_secrets_dir=tmp_path / "sidecar")
    assert settings.e2b_api_key is not None
    assert settings.e2b_api_key.get_secret_value() == "the e2b key"
    assert settings.modal_token_id is None
    assert settings.gateway_secret is not None
    shared = (tmp_path / "gateway" / "holdfast_gateway_secret").read_text().strip()
    assert settings.gateway_secret.get_secret_value() == shared


def test_the_store_gate_knows_one_who_may_do_nothing_and_no_administrator(
    first_start: ModuleType, tmp_path: Path
) -> None:
    first_start.make_secrets()
    [known] = json.loads((tmp_path / "gate" / "s3.json").read_text())["identities"]
    assert known["actions"] == []
    assert known["credentials"][0]["accessKey"]
    admin = (tmp_path / "api" / "holdfast_s3_access_key").read_text().strip()
    assert admin not in (tmp_path / "gate" / "s3.json").read_text()
