"""Records of boxes and mounts that a power cut left empty, or that another release wrote."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from sidecar.boxhost.boxes import Boxes
from sidecar.boxhost.in_process import HostParts, OwnHost
from sidecar.boxhost.mounts import KEEP_LOG_SECONDS, Mounts


@pytest.fixture(params=["", "{", "[]", "{}", '{"v": 9}', "\0\0"])
def text(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    found = tmp_path / "boxes" / "box-1"
    found.mkdir(parents=True)
    return found


def test_a_box_record_that_cannot_be_read_is_set_aside(
    tmp_path: Path, place: Path, text: str
) -> None:
    (place / "box.json").write_text(text)
    boxes = Boxes(tmp_path, tmp_path / "run", Path("bwrap"))
    assert boxes.all() == []
    assert (place / "box.json.broken").exists()


def test_a_freezer_record_that_cannot_be_read_keeps_no_other_box_frozen(
    tmp_path: Path, place: Path, text: str
) -> None:
    (place / "freezer.json").write_text(text)
    other = tmp_path / "boxes" / "box-2"
    other.mkdir()
    (other / "freezer.json").write_text('{"stopped": []}')
    boxes = Boxes(tmp_path, tmp_path / "run", Path("bwrap"))
    assert boxes.thaw_all() == 1
    assert (place / "freezer.json.broken").exists()


def test_a_mount_record_that_cannot_be_read_is_set_aside(tmp_path: Path, text: str) -> None:
    (tmp_path / "mounts").mkdir()
    (tmp_path / "mounts" / "session-1.json").write_text(text)
    mounts = Mounts(tmp_path)
    assert mounts.all() == []
    assert (tmp_path / "mounts" / "session-1.json.broken").exists()


def test_a_host_whose_name_was_lost_gets_another(tmp_path: Path) -> None:
    (tmp_path / "mounts").mkdir()
    (tmp_path / "mounts" / "host").write_text("")
    name = Mounts(tmp_path).host()
    assert name
    assert Mounts(tmp_path).host() == name


async def test_a_box_host_starts_with_records_that_it_cannot_read(
    tmp_path: Path, place: Path, text: str
) -> None:
    (tmp_path / "mounts").mkdir()
    for record in (place / "box.json", place / "freezer.json", tmp_path / "mounts" / "s.json"):
        record.write_text(text)
    nothing = Path("nothing")
    host = OwnHost(
        HostParts(
            data_dir=tmp_path,
            run_dir=tmp_path / "run",
            bwrap=nothing,
            harness_dir=nothing,
            node=nothing,
            weed=nothing,
            geesefs=None,
            filer="",
            s3_endpoint="",
            bucket="sessions",
        )
    )
    await host.clear_leftovers()
    assert await host.boxes.thaw_all() == 0
    assert await host.boxes.all_living() == []


async def test_the_log_of_a_mount_goes_with_its_session_or_after_a_time(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    (tmp_path / "mounts").mkdir()
    logs = {name: tmp_path / "logs" / f"mount-{name}.log" for name in ("a", "b", "c", "mounted")}
    for path in logs.values():
        path.touch()
    record: dict[str, Any] = {"session_id": "mounted", "engine": "weed", "path": "/", "uid": None}
    record["daemon"] = {"pid": 1, "started": 1}
    (tmp_path / "mounts" / "mounted.json").write_text(json.dumps(record))
    past = time.time() - KEEP_LOG_SECONDS - 60
    os.utime(logs["b"], (past, past))
    os.utime(logs["mounted"], (past, past))
    mounts = Mounts(tmp_path)
    await mounts.forget("a")
    mounts.sweep()
    assert {name for name, path in logs.items() if path.exists()} == {"c", "mounted"}
