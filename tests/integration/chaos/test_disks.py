"""A disk of the chaos is full when it shall be, and only then."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from tests.chaos.disks import small_disks
from tests.support.requirements import missing


async def test_a_disk_has_no_room_for_a_while_and_others_have(short_dir: Path) -> None:
    if os.geteuid() != 0:
        missing("root", "only root can mount")
    async with small_disks(short_dir) as disks:
        data = disks.data_dir
        assert disks.why_not == ""
        assert (data / "postgres" / "PG_VERSION").exists()
        (data / "before").write_text("before")
        async with disks.full("data-disk"):
            with pytest.raises(OSError, match="No space left") as full:
                (data / "after").write_text("x" * 10_000)
            assert full.value.errno == errno.ENOSPC
            assert (data / "before").read_text() == "before"
            (data / "seaweedfs" / "other").write_text("x" * 10_000)
        (data / "after").write_text("x" * 10_000)
        assert disks.was_full == {"data-disk"}
    assert not data.exists()
    assert list(disks.run_dir.iterdir()) == []


async def test_where_nothing_can_be_mounted_the_reason_is_said(
    short_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_arguments: object) -> None:
        raise PermissionError("not you")

    monkeypatch.setattr("tests.support.small_disk._run", refuse)
    async with small_disks(short_dir) as disks:
        assert disks.places == {}
        assert disks.why_not == "a tmpfs cannot be mounted: not you"
