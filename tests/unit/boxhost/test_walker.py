"""What the walker reads is what it says: a file that changes under its hands is told of."""

from __future__ import annotations

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
    walker = Walker(str(tmp_path))
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
