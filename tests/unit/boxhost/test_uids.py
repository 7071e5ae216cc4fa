"""Host uids of sessions: one each, and never too few for sessions that are not there."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from sidecar.boxhost.uids import NoUidLeft, Uids
from tests.support.requirements import missing


@pytest.fixture(autouse=True)
def _root() -> None:
    if os.geteuid() != 0:
        missing("root", "only root gives sessions a uid")


@pytest.fixture
def few(tmp_path: Path) -> Uids:
    """A stack with three uids, all given, none of them lately."""
    found = Uids(tmp_path, range(1_900_000, 1_900_003))
    for name in ("mounted", "boxed", "ended"):
        found.of(name)
        age(tmp_path, name)
    (tmp_path / "mounts").mkdir()
    (tmp_path / "mounts" / "mounted.json").write_text("{}")
    (tmp_path / "boxes" / "b").mkdir(parents=True)
    box = {"uid": found.of("boxed"), "labels": {"session": "boxed"}}
    (tmp_path / "boxes" / "b" / "box.json").write_text(json.dumps(box))
    age(tmp_path, "boxed")
    return found


def age(data: Path, name: str) -> None:
    os.utime(data / "uids" / name, (0, 0))


def test_a_session_keeps_its_uid(tmp_path: Path) -> None:
    found = Uids(tmp_path)
    one, two = found.of("one"), found.of("two")
    assert one != two
    assert (found.of("one"), Uids(tmp_path).of("two")) == (one, two)


def test_when_none_is_left_the_one_of_a_session_without_box_or_mount_is_given_again(
    few: Uids, tmp_path: Path
) -> None:
    ended = int((tmp_path / "uids" / "ended").read_text())
    assert few.of("new") == ended
    age(tmp_path, "new")
    assert few.of("ended") == ended, "and it comes back when it is needed"
    assert not (tmp_path / "uids" / "new").exists()


def test_a_uid_that_is_in_use_is_never_given_again(few: Uids, tmp_path: Path) -> None:
    few.of("ended")  # asked for just now: a box may be on its way
    with pytest.raises(NoUidLeft):
        few.of("new")
    assert {path.name for path in (tmp_path / "uids").glob("[!.]*")} == {
        *("mounted", "boxed", "ended")
    }


def test_a_uid_under_which_a_process_runs_is_in_use(tmp_path: Path) -> None:
    found = Uids(tmp_path, range(os.getuid(), os.getuid() + 1))
    assert found.of("one") == os.getuid()
    age(tmp_path, "one")
    with pytest.raises(NoUidLeft):
        found.of("two")


def test_an_empty_record_of_one_session_keeps_no_other_from_its_uid(tmp_path: Path) -> None:
    found = Uids(tmp_path)
    one, two = found.of("one"), found.of("two")
    (tmp_path / "uids" / "one").write_text("")
    assert found.of("two") == two
    assert found.of("three") not in (None, two)
    assert found.of("one") is not None
    assert one is not None


def test_a_session_whose_record_is_broken_keeps_the_uid_of_its_box(
    few: Uids, tmp_path: Path
) -> None:
    uid = few.of("boxed")
    (tmp_path / "uids" / "boxed").write_text("")
    assert few.of("other") != uid
    assert few.of("boxed") == uid


def test_a_record_that_was_cut_off_is_no_uid(tmp_path: Path) -> None:
    found = Uids(tmp_path)
    uid = found.of("one")
    (tmp_path / "uids" / "one").write_text(str(uid)[:5])
    again = found.of("one")
    assert again is not None
    assert len(str(again)) == len(str(uid))
    assert (tmp_path / "uids" / "one.broken").exists()
