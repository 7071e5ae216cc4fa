"""Ports, directories, secrets, settings, binaries: what a stack finds on its machine."""

from __future__ import annotations

import json
import os
import socket
import stat
from dataclasses import asdict
from pathlib import Path

import pytest

from stack.embedded.credentials import load_credentials
from stack.embedded.layout import MAX_RUN_DIR_BYTES, Layout
from stack.embedded.ports import GRPC_OFFSET, check_api_port, store_ports
from stack.errors import DirectoryUnsafe, Misconfigured, PortTaken
from stack.settings import Settings, inherited_environment, load_settings
from tests.support.stack.fixtures import MakeSettings


def listener(port: int = 0) -> socket.socket:
    server = socket.create_server(("127.0.0.1", port))
    server.listen(1)
    return server


def test_a_taken_port_names_the_port_its_holder_and_what_to_set(
    make_settings: MakeSettings,
) -> None:
    with listener() as server:
        port = server.getsockname()[1]
        with pytest.raises(PortTaken) as caught:
            check_api_port(make_settings(api_port=port))
    assert f"port {port} on 127.0.0.1 is taken by pid {os.getpid()}" in caught.value.message
    assert "HOLDFAST_API_PORT" in caught.value.hint
    check_api_port(make_settings(api_port=port))


def test_a_host_that_is_not_ours_is_a_clear_error(make_settings: MakeSettings) -> None:
    # 192.0.2.0/24 is for documentation: no machine has it
    with pytest.raises(PortTaken, match=r"cannot listen on 192\.0\.2\.1:8000"):
        check_api_port(make_settings(api_host="192.0.2.1"))


def test_the_ports_of_the_store_are_kept_while_they_are_free(tmp_path: Path) -> None:
    first = store_ports(tmp_path / "ports.json")
    assert len({*asdict(first).values()}) == 4
    assert store_ports(tmp_path / "ports.json") == first
    with listener(first.filer + GRPC_OFFSET):
        second = store_ports(tmp_path / "ports.json")
    assert first.filer not in asdict(second).values()
    assert store_ports(tmp_path / "ports.json") == second


@pytest.mark.parametrize("content", ["", "{", "[]", '{"master": 1}', '{"master": "x"}'])
def test_a_damaged_file_of_ports_is_replaced(tmp_path: Path, content: str) -> None:
    (tmp_path / "ports.json").write_text(content)
    chosen = store_ports(tmp_path / "ports.json")
    assert json.loads((tmp_path / "ports.json").read_text()) == asdict(chosen)


def test_secrets_are_random_private_and_stay_the_same(make_settings: MakeSettings) -> None:
    settings = make_settings()
    layout = Layout.of(settings)
    layout.make()
    first = load_credentials(layout, settings)
    files = [layout.token, *layout.secrets.iterdir()]
    assert len(files) == 4
    layout.token.chmod(0o644)
    assert load_credentials(layout, settings) == first
    assert {stat.S_IMODE(path.stat().st_mode) for path in files} == {0o600}
    values = [value.get_secret_value() for value in asdict(first).values()]
    assert len(set(values)) == len(values)
    assert all(len(value) >= 20 for value in values)
    assert not any(value in repr(first) for value in values)


def test_a_token_that_is_set_is_used_and_written_for_clients(make_settings: MakeSettings) -> None:
    settings = make_settings(api_token="0123456789abcdef")
    layout = Layout.of(settings)
    layout.make()
    assert load_credentials(layout, settings).api_token == settings.api_token
    assert layout.token.read_text().strip() == "0123456789abcdef"


def test_directories_have_the_modes_that_boxes_and_secrets_need(
    make_settings: MakeSettings,
) -> None:
    layout = Layout.of(make_settings())
    layout.make()
    assert stat.S_IMODE(layout.run.stat().st_mode) == 0o711
    for private in (layout.secrets, layout.logs, layout.control, layout.postgres_socket_dir):
        assert stat.S_IMODE(private.stat().st_mode) == 0o700


def test_a_run_directory_that_is_a_link_is_refused(
    make_settings: MakeSettings, stack_dir: Path
) -> None:
    (stack_dir / "elsewhere").mkdir()
    (stack_dir / "run").symlink_to(stack_dir / "elsewhere")
    with pytest.raises(DirectoryUnsafe, match="is not a directory of user"):
        Layout.of(make_settings()).make()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory away")
def test_a_run_directory_of_another_user_is_refused(
    make_settings: MakeSettings, stack_dir: Path
) -> None:
    (stack_dir / "run").mkdir()
    os.chown(stack_dir / "run", 12345, 12345)
    with pytest.raises(DirectoryUnsafe, match="is not a directory of user"):
        Layout.of(make_settings()).make()


def test_a_run_directory_too_long_for_sockets_is_refused(make_settings: MakeSettings) -> None:
    settings = make_settings(run_dir=Path("/tmp") / ("x" * MAX_RUN_DIR_BYTES))
    with pytest.raises(Misconfigured, match="too long for unix sockets"):
        Layout.of(settings).make()
    assert not settings.data.exists()


def test_sockets_are_removed_and_what_is_not_ours_stays(make_settings: MakeSettings) -> None:
    layout = Layout.of(make_settings())
    for keeps in (True, False):
        layout.make()
        foreign = layout.run / "control" / "notes.txt"
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(str(layout.sidecar_socket))
        if keeps:
            foreign.write_text("not a socket")
        layout.remove_sockets()
        assert foreign.exists() == layout.run.exists() == keeps
        foreign.unlink(missing_ok=True)
        assert not layout.sidecar_socket.exists()


def test_two_data_directories_have_two_short_run_directories(make_settings: MakeSettings) -> None:
    runs = {Layout.of(make_settings(data_dir=Path(name), run_dir=None)).run for name in "ab"}
    assert len(runs) == 2
    assert all(len(bytes(run)) <= MAX_RUN_DIR_BYTES for run in runs)


def test_a_wrong_setting_is_named_as_it_is_spelt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_API_PORT", "eight thousand")
    monkeypatch.setenv("HOLDFAST_WORKSPACE", "floppy")
    with pytest.raises(Misconfigured) as caught:
        load_settings()
    assert "HOLDFAST_API_PORT: " in caught.value.message
    assert "HOLDFAST_WORKSPACE: " in caught.value.message


def test_an_env_file_is_read_and_the_environment_wins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HOLDFAST_API_PORT", raising=False)
    monkeypatch.setenv("HOLDFAST_DEFAULT_HARNESS", "pi")
    (tmp_path / ".env").write_text(
        "HOLDFAST_API_PORT=8123\nHOLDFAST_DEFAULT_HARNESS=codex\nANTHROPIC_API_KEY=sk-1\nOTHER=1\n"
    )
    settings = Settings(_env_file=tmp_path / ".env")
    assert (settings.api_port, settings.default_harness) == (8123, "pi")
    assert settings.anthropic_api_key is not None
    assert settings.anthropic_api_key.get_secret_value() == "sk-1"
    assert "sk-1" not in repr(settings)


def test_children_inherit_nothing_that_was_not_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-1")
    monkeypatch.setenv("HTTPS_PROXY", "http://user:password@proxy")
    assert not {"ANTHROPIC_API_KEY", "HTTPS_PROXY"} & inherited_environment().keys()
    assert "HTTPS_PROXY" in inherited_environment(network=True)
    assert "ANTHROPIC_API_KEY" not in inherited_environment(network=True)
