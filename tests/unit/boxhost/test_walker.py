"""What the walker reads is what it says: a file that changes under its hands is told of."""

from __future__ import annotations

import base64
import os
from pathlib import Path
from typing import Any

import pytest

from sidecar.boxhost.walker import SCANNED_PER_STAT, Walker

MANY = 3 * SCANNED_PER_STAT


def settled(walker: Walker) -> dict[str, Any]:
    return walker.settle(sync_root=False)


@pytest.fixture(params=["all of them are new", "one of many is new"])
def scanned(request: pytest.FixtureRequest, tmp_path: Path) -> Walker:
    """A walker that has seen `file` and read nothing of it yet, in either of its ways to look
    again."""
    walker = Walker(str(tmp_path), young_ns=0)
    if request.param == "one of many is new":
        for number in range(MANY):
            (tmp_path / f"other-{number}").write_bytes(b"other")
        walker.scan(token="", held=[])
        settled(walker)
    (tmp_path / "file").write_bytes(b"seen")
    walker.scan(token=walker.token, held=[])
    assert [name for name, _ in walker.pending] == [b"file"]
    return walker


def test_what_stays_as_it_was_seen_is_settled(scanned: Walker) -> None:
    assert settled(scanned)["problems"] == []
    again = scanned.scan(token=scanned.token, held=[])
    assert again["pending"] == 0


@pytest.mark.parametrize("data", [b"longer than it was", b"same"], ids=["grown", "rewritten"])
def test_a_file_that_changes_after_it_was_seen_is_told_and_read_again(
    scanned: Walker, tmp_path: Path, data: bytes
) -> None:
    file = tmp_path / "file"
    file.write_bytes(data)
    os.utime(file, ns=(1, 1))  # a clock's tick may be longer than this test
    (problem,) = settled(scanned)["problems"]
    assert problem == {
        "path": "file",
        "errno": 0,
        "reason": "it was written to while it was read",
    }
    assert scanned.scan(token=scanned.token, held=[])["pending"] == 1


def test_a_file_that_goes_after_it_was_seen_is_told(scanned: Walker, tmp_path: Path) -> None:
    (tmp_path / "file").unlink()
    (problem,) = settled(scanned)["problems"]
    assert problem["path"] == "file"
    again = scanned.scan(token=scanned.token, held=[])
    assert again["gone"] == 1
    assert settled(scanned)["gone"] == ["file"]
    scanned.scan(token=scanned.token, held=[])
    assert settled(scanned)["gone"] == []


def scan(walker: Walker, *distrusted: str) -> dict[str, Any]:
    return walker.scan(token=walker.token, held=[], distrusted=list(distrusted))


def test_a_file_that_was_rewritten_with_its_old_time_is_read_again(
    scanned: Walker, tmp_path: Path
) -> None:
    settled(scanned)
    file = tmp_path / "file"
    before = file.stat()
    with file.open("r+b") as opened:
        opened.write(b"SEEN")
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    after = file.stat()
    assert (before.st_mtime_ns, before.st_ino) == (after.st_mtime_ns, after.st_ino)
    assert scan(scanned)["pending"] == 1


def test_what_is_distrusted_is_read_again_once(scanned: Walker) -> None:
    settled(scanned)
    assert scan(scanned, "file", "not there")["pending"] == 1
    assert settled(scanned)["read"] == ["file"]
    assert scan(scanned)["pending"] == 0


def test_a_young_file_is_read_again_as_it_may_change_within_a_tick(tmp_path: Path) -> None:
    walker = Walker(str(tmp_path), young_ns=3600 * 10**9)
    (tmp_path / "file").write_bytes(b"young")
    os.utime(tmp_path / "file", ns=(1, 1))
    scan(walker)
    assert settled(walker)["problems"] == []
    assert scan(walker)["pending"] == 1, "its ctime is young, whatever its mtime says"
    walker.young_ns = 0
    settled(walker)
    assert scan(walker)["pending"] == 0


def test_a_file_from_the_future_is_read_again(tmp_path: Path) -> None:
    walker = Walker(str(tmp_path), young_ns=0)
    (tmp_path / "file").write_bytes(b"later")
    os.utime(tmp_path / "file", ns=(2**62, 2**62))
    scan(walker)
    settled(walker)
    assert scan(walker)["pending"] == 1


def test_what_is_filled_in_never_takes_the_place_of_what_is_there(tmp_path: Path) -> None:
    (tmp_path / "taken").write_bytes(b"the agent's")
    (tmp_path / "link").symlink_to("taken")
    pieces = [
        {"path": path, "offset": offset, "data": base64.b64encode(data).decode()}
        for path in ("taken", "link", "new/file")
        for offset, data in ((0, b"one"), (3, b"two"))
    ]
    told = Walker(str(tmp_path)).fill(pieces, None)
    assert told == {"taken": ["link", "taken"]}
    assert (tmp_path / "taken").read_bytes() == b"the agent's"
    assert (tmp_path / "new" / "file").read_bytes() == b"onetwo"
