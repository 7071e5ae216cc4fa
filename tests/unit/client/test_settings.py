"""Finding the stack: the environment, else the nearest data directory."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from client import discover, from_env, open_store
from contracts import errors

VARIABLES = (
    "HOLDFAST_URL",
    "HOLDFAST_TOKEN",
    "HOLDFAST_DATA_DIR",
    "HOLDFAST_S3_ENDPOINT",
    "HOLDFAST_S3_ACCESS_KEY",
    "HOLDFAST_S3_SECRET_KEY",
    "HOLDFAST_S3_BUCKET",
)
STORE = {"endpoint": "http://127.0.0.1:8333", "access_key": "ak", "secret_key": "sk-secret"}


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    data = tmp_path / ".holdfast"
    data.mkdir()
    (data / "token").write_text("file-token\n")
    (data / "api.json").write_text(json.dumps({"url": "http://127.0.0.1:8123", "pid": 1}))
    (data / "store.json").write_text(json.dumps({**STORE, "bucket": "mine"}))
    return tmp_path


def test_the_nearest_data_directory_above_is_found(project: Path) -> None:
    deep = project / "a" / "b"
    deep.mkdir(parents=True)
    target = discover(deep)
    assert target.url == "http://127.0.0.1:8123"
    assert target.token.get_secret_value() == "file-token"
    assert target.data_dir == (project / ".holdfast").resolve()
    assert "file-token" not in repr(target)


def test_a_data_directory_of_another_name_is_used(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    moved = (project / ".holdfast").rename(project / "elsewhere")
    monkeypatch.setenv("HOLDFAST_DATA_DIR", str(moved))
    assert discover(project).data_dir == moved


def test_an_env_file_is_the_second_choice(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    env_file = project / ".env"
    env_file.write_text("HOLDFAST_URL=http://file:1\nHOLDFAST_TOKEN=t1\nANTHROPIC_API_KEY=x\n")
    assert discover(project, env_file=env_file).url == "http://file:1"
    env_file.write_text("HOLDFAST_API_PORT=9000\n")
    assert discover(project, env_file=env_file).url == "http://127.0.0.1:8123"
    env_file.write_text("HOLDFAST_TOKEN=t1\n")
    with pytest.raises(errors.InvalidInput, match="only one is set"):
        discover(project, env_file=env_file)
    monkeypatch.setenv("HOLDFAST_URL", "http://elsewhere:1")
    monkeypatch.setenv("HOLDFAST_TOKEN", "env-token")
    assert discover(project, env_file=env_file).url == "http://elsewhere:1"


def test_the_environment_wins(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_URL", "http://elsewhere:1")
    monkeypatch.setenv("HOLDFAST_TOKEN", "env-token")
    target = discover(project)
    assert (target.url, target.token.get_secret_value()) == ("http://elsewhere:1", "env-token")
    assert target == from_env()


@pytest.mark.parametrize("alone", ["HOLDFAST_URL", "HOLDFAST_TOKEN"])
def test_a_token_never_goes_to_an_address_of_another_source(
    project: Path, monkeypatch: pytest.MonkeyPatch, alone: str
) -> None:
    monkeypatch.setenv(alone, "http://elsewhere:1")
    with pytest.raises(errors.InvalidInput, match="only one is set"):
        discover(project)


def test_without_an_environment_there_is_no_stack_in_it(project: Path) -> None:
    with pytest.raises(errors.InvalidInput, match="not set"):
        from_env()


@pytest.mark.parametrize("missing", ["token", "api.json"])
def test_a_stack_that_was_never_up_says_so(project: Path, missing: str) -> None:
    (project / ".holdfast" / missing).unlink()
    with pytest.raises(errors.Unavailable, match=missing) as caught:
        discover(project)
    assert "make up" in caught.value.hint


def test_no_data_directory_says_so(
    tmp_path: Path, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("client.settings.DATA_DIR", ".holdfast-that-nobody-has")
    with pytest.raises(errors.Unavailable, match="HOLDFAST_URL"):
        discover(tmp_path)


def test_a_damaged_file_is_named_and_its_content_is_not(project: Path) -> None:
    (project / ".holdfast" / "store.json").write_text('{"secret_key": "sk-secret", ')
    with pytest.raises(errors.InvalidInput, match=r"store\.json is damaged") as caught:
        open_store(discover(project))
    assert "sk-secret" not in str(caught.value)


def test_the_store_is_told_by_its_file_or_by_the_environment(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(discover(project))
    assert (store.endpoint, store.bucket) == (STORE["endpoint"], "mine")
    assert store.secret_key.get_secret_value() == "sk-secret"
    assert "sk-secret" not in repr(store)
    for name, value in STORE.items():
        monkeypatch.setenv(f"HOLDFAST_S3_{name.upper()}", value + "-env")
    assert open_store(discover(project)).endpoint == STORE["endpoint"] + "-env"


def test_a_remote_stack_has_no_store_unless_told(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_URL", "http://elsewhere:1")
    monkeypatch.setenv("HOLDFAST_TOKEN", "t")
    with pytest.raises(errors.InvalidInput, match="not known"):
        open_store(discover(project))
