"""A box's HOME is read from the host: never through a link, never more than asked for."""

from __future__ import annotations

import io
import os
import tarfile
from pathlib import Path

import pytest

from sidecar.boxhost.home import HomeTooLarge, pack

MOST = 1 << 20


def names(tar: bytes) -> list[str]:
    with tarfile.open(fileobj=io.BytesIO(tar)) as opened:
        return opened.getnames()


@pytest.fixture
def home(tmp_path: Path) -> Path:
    place = tmp_path / "home"
    (place / ".agent/sessions/deep").mkdir(parents=True)
    (place / ".agent/sessions/one.jsonl").write_text("one\n")
    (place / ".agent/sessions/deep/two.jsonl").write_text("two\n")
    (place / ".agent/auth.json").write_text("secret")
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside/secret").write_text("of the host")
    return place


def test_only_what_is_kept_is_packed(home: Path) -> None:
    packed = pack(home, [".agent/sessions"], [], MOST)
    assert names(packed) == [".agent/sessions/deep/two.jsonl", ".agent/sessions/one.jsonl"]


def test_what_never_leaves_is_left_out(home: Path) -> None:
    packed = pack(home, [".agent"], [".agent/auth.json", ".agent/sessions/deep"], MOST)
    assert names(packed) == [".agent/sessions/one.jsonl"]


def test_a_name_that_only_begins_like_one_left_out_is_kept(home: Path) -> None:
    (home / ".agent/auth.json.old").write_text("kept")
    assert ".agent/auth.json.old" in names(pack(home, [".agent"], [".agent/auth.json"], MOST))


def test_a_link_to_a_file_is_not_taken(home: Path, tmp_path: Path) -> None:
    (home / ".agent/sessions/link").symlink_to(tmp_path / "outside/secret")
    assert b"of the host" not in pack(home, [".agent/sessions"], [], MOST)


def test_a_directory_that_is_a_link_is_not_entered(home: Path, tmp_path: Path) -> None:
    (home / ".agent/sessions/link").symlink_to(tmp_path / "outside")
    (home / ".way").symlink_to(tmp_path)
    assert b"of the host" not in pack(home, [".agent/sessions", ".way/outside"], [], MOST)


def test_a_fifo_does_not_hold_up_the_packing(home: Path) -> None:
    os.mkfifo(home / ".agent/sessions/fifo")
    assert len(names(pack(home, [".agent/sessions"], [], MOST))) == 2


def test_two_packs_of_the_same_files_are_the_same_bytes(home: Path) -> None:
    first = pack(home, [".agent"], [], MOST)
    os.utime(home / ".agent/sessions/one.jsonl", (1, 1))
    assert pack(home, [".agent"], [], MOST) == first


def test_more_than_can_be_carried_is_an_error(home: Path) -> None:
    (home / ".agent/sessions/big").write_bytes(bytes(MOST))
    with pytest.raises(HomeTooLarge):
        pack(home, [".agent/sessions"], [], MOST)


def test_a_home_without_state_is_an_empty_pack(home: Path) -> None:
    assert names(pack(home, [".nothing/here"], [], MOST)) == []
