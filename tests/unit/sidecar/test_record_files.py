"""Records on disk: replaced as a whole, and set aside when they cannot be read."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from sidecar.record_files import (
    KEEP_BROKEN_SECONDS,
    read_record,
    sweep_records,
    was_set_aside,
    write_record,
)


def test_a_record_is_on_disk_before_it_has_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    fsync, rename = os.fsync, Path.rename

    def synced(fd: int) -> None:
        done.append(f"sync {Path(os.readlink(f'/proc/self/fd/{fd}')).suffix}")  # noqa: PTH115
        fsync(fd)

    def renamed(self: Path, target: Path) -> Path:
        done.append("rename")
        return rename(self, target)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(Path, "rename", renamed)
    write_record(tmp_path / "a.json", "{}")
    assert done == ["sync .new", "rename", "sync "]


def test_a_record_that_is_replaced_keeps_its_mode(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    write_record(path, "1")
    path.chmod(0o640)
    write_record(path, "2")
    assert (path.stat().st_mode & 0o777, path.read_text()) == (0o640, "2")
    assert list(tmp_path.iterdir()) == [path]


def test_a_write_that_fails_leaves_the_record_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.json"
    write_record(path, "1")

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        write_record(path, "2")
    assert path.read_text() == "1"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("text", ["", "{", "[]", "\xff\xfe", '{"b": 1}', "null"])
def test_a_record_that_cannot_be_read_is_set_aside_and_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, text: str
) -> None:
    path = tmp_path / "a.json"
    path.write_bytes(text.encode("latin-1"))
    assert read_record(path, lambda record: record["a"]) is None
    assert (path.exists(), was_set_aside(path)) == (False, True)
    assert str(path) in caplog.text
    write_record(path, json.dumps({"a": 5}))
    assert read_record(path, lambda record: record["a"]) == 5


def test_what_was_set_aside_is_kept_for_a_time(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text("")
    read_record(path, dict)
    (tmp_path / "b.json").write_text("{}")
    sweep_records(tmp_path)
    assert was_set_aside(path)
    past = time.time() - KEEP_BROKEN_SECONDS - 60
    for each in tmp_path.iterdir():
        os.utime(each, (past, past))
    sweep_records(tmp_path)
    assert [each.name for each in tmp_path.iterdir()] == ["b.json"]
