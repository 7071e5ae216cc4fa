"""How boxes are paused, stopped and removed, on both backends; and what emulators leave behind."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from emulators import freezing, ownership, process_table
from emulators.boxes import Box, Boxes, BoxFailed, BoxNotRunning, open_boxes
from emulators.options import Options
from tests.support.emulators.fixtures import Emulator, as_arguments, backend_options, started
from tests.support.emulators.in_box import WITHIN, processes, python, run, wait
from tests.support.paths import ROOT

QUIET_SECONDS = 0.3
# Counts aloud for whoever connects: what is counted is in its memory only.
COUNTER = """
import socket, time
listener = socket.create_server(("127.0.0.1", 7001))
print("ready")
connection, _ = listener.accept()
count = 0
while True:
    connection.sendall(b"%d\\n" % count)
    count += 1
    time.sleep(0.01)
"""


@pytest.fixture
async def box(boxes: Boxes, request: pytest.FixtureRequest) -> AsyncIterator[Box]:
    made = await boxes.create(f"box-{abs(hash(request.node.name))}", {})
    yield made
    await made.destroy()


async def count_until_quiet(reader: asyncio.StreamReader) -> list[int]:
    """What was counted until nothing more comes for QUIET_SECONDS."""
    counted = []
    for _ in range(10_000):
        try:
            async with asyncio.timeout(QUIET_SECONDS):
                counted.append(int(await reader.readline()))
        except TimeoutError:
            return counted
    raise AssertionError("it counts on")


async def check_pause(box: Box) -> None:
    await python(box, COUNTER)
    reader, writer = await box.connect(7001)
    await reader.readline()
    await box.pause()
    assert not box.running()
    before = await count_until_quiet(reader)
    await box.resume()
    assert box.running()
    async with asyncio.timeout(WITHIN):
        after = [int(await reader.readline()) for _ in range(3)]
    last = before[-1] if before else 0
    assert after == [last + 1, last + 2, last + 3]
    writer.close()


async def test_a_paused_box_stands_still_and_goes_on_where_it_was(box: Box) -> None:
    await check_pause(box)
    await box.pause()  # and once more
    await box.resume()
    assert (await run(box, "echo", "on")).stdout == "on\n"


async def test_without_a_cgroup_a_box_is_paused_by_signals(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(freezing, "_cgroups_of", lambda pid: iter(()))
    # not a container: an engine freezes these itself
    async with open_boxes(backend_options("process", request)) as boxes:
        box = await boxes.create("signalled", {})
        stopped = await box.exec(["sh", "-c", "kill -STOP $$; echo woken"])
        await until_stopped(box, stopped.pid)
        await check_pause(box)
        await until_stopped(box, stopped.pid)  # not ours to wake
        await box.pause()
        await box.stop()


async def until_stopped(box: Box, pid: int) -> None:
    async with asyncio.timeout(WITHIN):
        while (await run(box, "ps", "-o", "state=", "-p", str(pid))).stdout.strip() != "T":
            await asyncio.sleep(0.02)


async def test_nothing_is_done_in_a_box_that_is_paused(box: Box) -> None:
    await box.pause()
    for attempt in (box.exec(["true"]), box.connect(7001), box.read("/etc/passwd"), box.pause()):
        with pytest.raises(BoxNotRunning):
            await attempt
    await box.resume()
    with pytest.raises(BoxNotRunning):
        await box.resume()


@pytest.mark.parametrize("paused", [False, True])
async def test_a_stopped_box_has_lost_its_processes_and_kept_its_disk(
    box: Box, paused: bool
) -> None:
    for path in ("/session/workspace/kept", "/home/agent/kept", "/tmp/kept"):
        await box.write(path, b"kept")
    await box.write("/root/kept", b"kept", user="root")
    sleeping = await box.exec(["sleep", "4714"])
    if paused:
        await box.pause()
    await box.stop()
    assert await wait(sleeping) == -9
    assert not box.running()
    with pytest.raises(BoxNotRunning):
        await box.exec(["true"])
    await box.stop()
    await box.start()
    await box.start()
    assert not await processes(box, "sleep 4714")
    for path in ("/session/workspace/kept", "/home/agent/kept", "/tmp/kept", "/root/kept"):
        assert await box.read(path, user="root") == b"kept"


async def test_a_box_whose_first_process_died_does_not_run_and_can_be_started(box: Box) -> None:
    assert (await run(box, "sh", "-c", "touch /tmp/kept")).exit_code == 0
    killer = await box.exec(["pkill", "-KILL", "-x", "sleep"], user="root")
    await wait(killer)
    async with asyncio.timeout(WITHIN):
        while box.running():
            await asyncio.sleep(0.01)
    with pytest.raises(BoxNotRunning):
        await box.exec(["true"])
    await box.start()
    assert (await run(box, "ls", "/tmp/kept")).exit_code == 0


async def test_a_destroyed_box_is_gone_for_good(boxes: Boxes, options: Options) -> None:
    box = await boxes.create("destroyed", {})
    sleeping = await box.exec(["sleep", "4715"])
    assert any("destroyed" in name for name in left_by(options, os.getpid()))
    await box.destroy()
    await box.destroy()
    assert await wait(sleeping) == -9
    assert not any("destroyed" in name for name in left_by(options, os.getpid()))
    assert not box.running()
    for attempt in (box.exec(["true"]), box.start(), box.resume(), box.read("/etc/passwd")):
        with pytest.raises(BoxNotRunning):
            await attempt
    again = await boxes.create("destroyed", {})
    assert again.running()
    await again.destroy()


async def test_boxes_are_apart(boxes: Boxes, box: Box) -> None:
    other = await boxes.create("other", {})
    await box.write("/tmp/mine", b"mine")
    sleeping = await box.exec(["sleep", "4716"])
    with pytest.raises(FileNotFoundError):
        await other.read("/tmp/mine")
    assert not await processes(other, "sleep 4716")
    await other.destroy()
    assert sleeping.exit_code is None


async def test_who_closes_his_boxes_leaves_those_of_others(boxes: Boxes, options: Options) -> None:
    ours = await boxes.create("same-name", {})
    async with open_boxes(options) as others:
        theirs = await others.create("same-name", {})
    assert not theirs.running()
    assert (await run(ours, "echo", "here")).stdout == "here\n"
    await ours.destroy()


def left_by(options: Options, pid: int) -> list[str]:
    """The names of containers or directories of the emulator with this pid."""
    if options.backend == "container":
        listed = subprocess.run(
            ["docker", "ps", "-a", "--filter", f"label={ownership.MARK}", "--format", "{{.Names}}"],
            capture_output=True,
            text=True,
            timeout=30,
            check=True,
        )
        return [name for name in listed.stdout.split() if f"-{pid}-" in name]
    found = Path(tempfile.gettempdir()).glob(f"{ownership.MARK}.*-{pid}-*/*")
    return [str(path) for path in found]


def cgroups_left_by(pid: int) -> list[Path]:
    own = freezing.freezer_of(os.getpid())
    return [] if own is None else list(own.glob(f"{ownership.MARK}.*-{pid}-*"))


@contextlib.asynccontextmanager
async def with_a_box(options: Options, *, paused: bool = False) -> AsyncIterator[Emulator]:
    async with started(["-m", "tests.support.emulators.bare", *as_arguments(options)]) as emulator:
        async with httpx.AsyncClient(base_url=emulator.url, timeout=WITHIN) as http:
            assert (await http.post("/boxes/first")).status_code == 201
            if paused:
                assert (await http.post("/boxes/first/pause")).status_code == 204
        yield emulator


@pytest.mark.parametrize("paused", [False, True])
async def test_an_emulator_that_is_told_to_end_removes_its_boxes(
    options: Options, paused: bool
) -> None:
    async with with_a_box(options, paused=paused) as emulator:
        assert left_by(options, emulator.pid)
    assert left_by(options, emulator.pid) == []
    assert cgroups_left_by(emulator.pid) == []


@pytest.mark.parametrize("paused", [False, True])
async def test_what_a_killed_emulator_left_goes_with_the_next_start_and_nothing_else(
    options: Options, paused: bool
) -> None:
    async with with_a_box(options) as living, with_a_box(options, paused=paused) as killed:
        killed.process.kill()
        await killed.process.wait()
        assert left_by(options, killed.pid)
        async with with_a_box(options):
            assert left_by(options, killed.pid) == []
            assert cgroups_left_by(killed.pid) == []
            assert left_by(options, living.pid)
        async with httpx.AsyncClient(base_url=living.url, timeout=WITHIN) as http:
            assert (await http.get("/boxes/first")).text == "running"


def test_an_emulator_is_dead_only_when_it_surely_is() -> None:
    boot, namespace, pid, start = ownership.ours().split("-")
    assert not ownership.is_dead(ownership.ours())
    assert ownership.is_dead(f"{boot}-{namespace}-{pid}-{int(start) + 1}"), "a reused pid"
    assert ownership.is_dead(f"anotherboot0-{namespace}-{pid}-{start}")
    assert not ownership.is_dead(f"{boot}-{int(namespace) + 1}-{pid}-{start}"), "out of our sight"
    first = process_table.entry(1)
    assert first is not None
    assert not ownership.is_dead(f"{boot}-{namespace}-1-{first.started}")


async def test_a_backend_that_cannot_work_says_what_is_missing(root: None, tmp_path: Path) -> None:
    nowhere = tmp_path / "nothing"
    for options, words in (
        (Options(backend="container", engine=nowhere), "no Docker engine"),
        (Options(backend="process", boxd_dir=nowhere), "no boxd"),
        (Options(backend="process", bwrap=nowhere), "no bubblewrap"),
        (Options(engine=nowhere, bwrap=nowhere), "no Docker engine"),
    ):
        with pytest.raises(BoxFailed, match=words):
            async with open_boxes(options):
                pass


async def test_an_emulator_that_cannot_run_says_why_in_one_line(root: None, tmp_path: Path) -> None:
    nowhere = ["--backend", "container", "--engine", str(tmp_path / "nothing")]
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "emulators", "e2b", *nowhere),
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    async with asyncio.timeout(WITHIN):
        stdout, stderr = await process.communicate()
    assert (process.returncode, stdout, len(stderr.splitlines())) == (1, b"", 1)
    assert b"no Docker engine" in stderr


async def test_without_the_image_there_are_no_containers(sandbox_image: str, root: None) -> None:
    with pytest.raises(BoxFailed, match="no-such-image"):
        async with open_boxes(Options(backend="container", image="no-such-image:latest")):
            pass


async def test_without_an_engine_boxes_are_processes(
    root: None, bwrap: Path, tmp_path: Path
) -> None:
    async with open_boxes(Options(engine=tmp_path / "nothing", bwrap=bwrap)) as boxes:
        box = await boxes.create("fallback", {})
        assert json.loads((await run(box, "echo", "1")).stdout) == 1
