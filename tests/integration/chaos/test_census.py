"""Boxes and what serves them are counted by what runs, whatever the records say."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from sidecar.boxhost.boxes import Boxes, BoxSpec
from sidecar.boxhost.host_files import SCRIPT
from tests.chaos.census import take_census
from tests.chaos.leaks import left_over

SESSION = "01a1e4e6-3b7e-713d-8de4-fc9a7bcee70a"


@pytest.fixture
async def boxes(short_dir: Path, bwrap: Path) -> AsyncIterator[Boxes]:
    host = Boxes(short_dir / "data", short_dir / "run", bwrap)
    (short_dir / "data").mkdir()
    state = {"parts": [{"name": "sidecar", "pid": os.getpid()}]}
    (short_dir / "data" / "state.json").write_text(json.dumps(state))
    yield host
    await host.stop_all()


@contextlib.contextmanager
def waiting(argv: list[str], executable: str | None = None) -> Iterator[int]:
    """A process that waits for its input to end, for the time of the block."""
    with subprocess.Popen(argv, executable=executable, stdin=subprocess.PIPE) as process:
        yield process.pid


def spec(short_dir: Path, epoch: int) -> BoxSpec:
    session_dir = short_dir / "session"
    (session_dir / "workspace").mkdir(parents=True, exist_ok=True)
    return BoxSpec(f"{SESSION}-{epoch}", SESSION, {}, session_dir, short_dir / "gateway")


async def test_a_second_living_box_of_a_session_is_a_rival(boxes: Boxes, short_dir: Path) -> None:
    await boxes.start(spec(short_dir, 1))
    assert take_census(short_dir / "data").rivals() == []
    second = await boxes.start(spec(short_dir, 2))
    (rivals,) = take_census(short_dir / "data").rivals()
    assert rivals == (SESSION, [f"box {SESSION}-1", f"box {SESSION}-2"])
    await boxes.kill(second.id)
    assert take_census(short_dir / "data").rivals() == []


async def test_a_box_without_a_session_is_left_over_although_its_record_is_lost(
    boxes: Boxes, short_dir: Path
) -> None:
    data = short_dir / "data"
    box = await boxes.start(spec(short_dir, 1))
    assert await left_over(data, {SESSION}, boxes_are_kept=True) == []
    record = data / "boxes" / box.id / "box.json"
    kept = record.read_bytes()
    record.unlink()
    told = await left_over(data, set(), boxes_are_kept=True)
    record.write_bytes(kept)
    assert any(f"box {box.id}" in word for word in told)
    assert any(f"keeper {box.id}" in word for word in told)
    assert any("kept after its time" in word for word in await left_over(data, {SESSION}, False))


async def test_a_walker_that_outlives_its_sidecar_is_left_over(
    boxes: Boxes, short_dir: Path
) -> None:
    data = short_dir / "data"
    mountpoint = data / "mounts" / SESSION / "workspace"
    mountpoint.mkdir(parents=True)
    with waiting([sys.executable, "-I", "-S", str(SCRIPT), str(mountpoint)]) as walker:
        assert await left_over(data, {SESSION}, boxes_are_kept=True) == []
        state = {"parts": [{"name": "sidecar", "pid": 1}]}
        (data / "state.json").write_text(json.dumps(state))
        told = await left_over(data, {SESSION}, boxes_are_kept=True)
        assert told == [f"walker {walker} of {SESSION} is not the sidecar's"]


async def test_a_mount_daemon_without_a_session_is_left_over(boxes: Boxes, short_dir: Path) -> None:
    data = short_dir / "data"
    mountpoint = f"-dir={data}/mounts/{SESSION}/workspace"
    # a stand-in by its arguments: what a mount does is not what is asked here
    with waiting(["/bin/sh", "-c", "read _", "weed", mountpoint]) as daemon:
        assert await left_over(data, {SESSION}, boxes_are_kept=True) == []
        told = await left_over(data, set(), boxes_are_kept=True)
        assert len(told) == 1
        assert f"mount daemon {SESSION}: {daemon}" in told[0]


def test_an_unmount_that_hangs_is_not_a_second_daemon(short_dir: Path) -> None:
    data = short_dir / "data"
    mountpoint = f"{data}/mounts/{SESSION}/workspace"
    argv = ["umount", "-c", "read _", "sh", mountpoint]
    with (
        waiting(["/bin/sh", "-c", "read _", "weed", f"-dir={mountpoint}"]) as daemon,
        waiting(argv, executable="/bin/sh"),
    ):
        found = take_census(data)
    assert [process.pid for process in found.mounts[SESSION]] == [daemon]
