"""A frozen box: nothing in it runs, it can be entered, ended and thawed by whoever comes later."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from sidecar.boxhost import freezer, processes
from sidecar.boxhost.boxes import HOME, Box, Boxes, BoxFailed, BoxSpec
from sidecar.boxhost.processes import ProcessId
from tests.integration.boxhost.test_boxes import inside
from tests.support.fork_chains import build_chain
from tests.support.requirements import missing
from tests.support.services import until

WAYS = {"cgroup2": "cgroup.freeze", "cgroup1": "freezer.state", "signals": None}
COUNT = "n=0; while :; do n=$((n+1)); echo $n > {0}.new; mv {0}.new {0}; done"
# Its parent is told when it stops, as a shell with job control is.
PARENT = """
import os, time
child = os.fork()
if child == 0:
    while True: time.sleep(60)
open("/home/agent/child", "w").write(str(child))
os.waitpid(child, os.WUNTRACED)
open("/home/agent/noticed", "w").write("x")
"""
VFORKS = """
import subprocess
n = 0
while True:
    subprocess.run(["/usr/bin/true"]); n += 1
    open("/home/agent/forks", "w").write(str(n))
"""


@pytest.fixture(params=list(WAYS))
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Each way to freeze that this host has."""
    every = freezer.ways

    def only(place: Path, first: ProcessId) -> Iterator[freezer.Way]:
        return (way for way in every(place, first) if _switch(way) == WAYS[request.param])

    me = processes.identify(os.getpid())
    assert me is not None
    found = list(only(Path("/tmp/nowhere"), me))
    if not found or (isinstance(found[0], freezer.Cgroup) and os.geteuid() != 0):
        missing("freezer", f"no {request.param} to freeze with")
    monkeypatch.setattr(freezer, "ways", only)
    return str(request.param)


def _switch(way: freezer.Way) -> str | None:
    return way.switch if isinstance(way, freezer.Cgroup) else None


def number(boxes: Boxes, name: str) -> int:
    try:
        return int((boxes.home("box-1") / name).read_text() or 0)
    except FileNotFoundError:
        return 0


async def spawn(boxes: Boxes, box: Box, *argv: str) -> None:
    process = await asyncio.create_subprocess_exec(
        *boxes.entering(box, argv, HOME, detached=True),
        stdin=asyncio.subprocess.DEVNULL,
        env={"PATH": "/usr/bin:/bin", "HOME": HOME},
    )
    assert await process.wait() == 0


async def counting(boxes: Boxes, box: Box, name: str) -> None:
    await spawn(boxes, box, "sh", "-c", COUNT.format(name))
    await until(lambda: number(boxes, name) > 0, f"{name} counts")


@pytest.mark.usefixtures("way")
async def test_every_process_stops_and_goes_on(boxes: Boxes, spec: BoxSpec) -> None:
    box = await boxes.start(spec)
    await counting(boxes, box, "one")
    await spawn(boxes, box, "unshare", "-Urpf", "sh", "-c", COUNT.format("nested"))
    await until(lambda: number(boxes, "nested") > 0, "the nested one counts")
    for _ in range(3):
        await boxes.freeze(box)
        before = [number(boxes, name) for name in ("one", "nested")]
        assert await inside(boxes, box, "echo entered") == "entered"
        assert [number(boxes, name) for name in ("one", "nested")] == before
        assert boxes.thaw(box.id)
        assert boxes.thaw(box.id), "a second thaw does no harm"
        for name, value in zip(("one", "nested"), before, strict=True):
            await until(lambda n=name, v=value: number(boxes, n) > v, f"{name} goes on")  # type: ignore[misc]


@pytest.mark.usefixtures("way")
async def test_what_enters_after_a_freeze_is_frozen_by_the_next(
    boxes: Boxes, spec: BoxSpec
) -> None:
    box = await boxes.start(spec)
    await boxes.freeze(box)
    await counting(boxes, box, "later")
    await boxes.freeze(box)
    before = number(boxes, "later")
    assert await inside(boxes, box, "echo entered") == "entered"
    assert number(boxes, "later") == before


@pytest.mark.usefixtures("way")
async def test_what_was_stopped_before_stays_stopped(boxes: Boxes, spec: BoxSpec) -> None:
    box = await boxes.start(spec)
    await spawn(boxes, box, "sleep", "600")
    await until(lambda: boxes.processes(box), "it runs")
    sleeper = boxes.processes(box)[0].id
    processes.kill(sleeper, signal.SIGSTOP)
    await until(lambda: processes.thread_states(sleeper.pid) == "T", "it is stopped")
    await boxes.freeze(box)
    boxes.thaw(box.id)
    assert await inside(boxes, box, "echo entered") == "entered"
    assert processes.thread_states(sleeper.pid) == "T"


@pytest.mark.usefixtures("way")
async def test_no_parent_sees_that_its_child_was_stopped(boxes: Boxes, spec: BoxSpec) -> None:
    box = await boxes.start(spec)
    await spawn(boxes, box, "python3", "-c", PARENT)
    await until(lambda: number(boxes, "child") > 0, "it has a child")
    for _ in range(5):
        await boxes.freeze(box)
        boxes.thaw(box.id)
        assert await inside(boxes, box, "echo entered") == "entered"
    assert not (boxes.home(box.id) / "noticed").exists()


@pytest.mark.usefixtures("way")
async def test_a_box_that_starts_processes_without_pause_is_frozen_each_time(
    boxes: Boxes, spec: BoxSpec
) -> None:
    box = await boxes.start(spec)
    for _ in range(3):
        await spawn(boxes, box, "python3", "-c", VFORKS)
    await until(lambda: number(boxes, "forks") > 0, "they fork")
    for _ in range(10):
        await boxes.freeze(box)
        pids = {process.id for process in boxes.processes(box)}
        assert {process.id for process in boxes.processes(box)} == pids
        boxes.thaw(box.id)


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("more", [(), ("sessions",)], ids=["one session", "sessions"])
async def test_chains_of_forks_are_frozen_or_nobody_says_so(
    short_dir: Path, bwrap: Path, spec: BoxSpec, tmp_path: Path, more: tuple[str, ...]
) -> None:
    boxes = Boxes(short_dir / "data", short_dir / "run", bwrap, freeze_seconds=5)
    box = await boxes.start(spec)
    try:
        program = boxes.home(box.id) / "chain"
        program.write_bytes(build_chain(tmp_path))
        program.chmod(0o755)
        await spawn(boxes, box, f"{HOME}/chain", HOME, "4", "60", *more)
        names = ["0", "1", "2", "3"]
        await until(lambda: all(number(boxes, name) for name in names), "they count")
        for _ in range(3):
            with contextlib.suppress(BoxFailed):  # sessions that are left at once, by signals
                await boxes.freeze(box)
                before = [number(boxes, name) for name in names]
                assert await inside(boxes, box, "sleep 0.1; echo entered") == "entered"
                assert [number(boxes, name) for name in names] == before
            boxes.thaw(box.id)
            before = [number(boxes, name) for name in names]
            for name, value in zip(names, before, strict=True):
                await until(lambda n=name, v=value: number(boxes, n) > v, f"{name} goes on")  # type: ignore[misc]
    finally:
        await boxes.stop_all()


async def another_pid(_: freezer.HostBirths) -> str:
    """As on a host where processes are born without a pause."""
    return uuid.uuid4().hex


async def test_on_a_busy_host_the_pids_of_the_box_are_the_proof(
    boxes: Boxes, spec: BoxSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(freezer.HostBirths, "last_pid", another_pid)
    box = await boxes.start(spec)
    await counting(boxes, box, "one")
    await boxes.freeze(box)
    before = number(boxes, "one")
    assert await inside(boxes, box, "echo entered") == "entered"
    assert number(boxes, "one") == before
    assert "last_pid.py" not in str(boxes.processes(box))
    boxes.thaw(box.id)
    await until(lambda: number(boxes, "one") > before, "it goes on")


async def test_a_freeze_that_cannot_be_proven_fails(
    boxes: Boxes, spec: BoxSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(freezer, "LAST_PID", "/nowhere.py")
    monkeypatch.setattr(
        freezer.HostBirths, "last_pid", lambda _: asyncio.sleep(0, uuid.uuid4().hex)
    )
    box = await boxes.start(spec)
    await counting(boxes, box, "one")
    with pytest.raises(BoxFailed, match="pids cannot be read"):
        await boxes.freeze(box)
    before = number(boxes, "one")
    await until(lambda: number(boxes, "one") > before, "it goes on")


async def test_a_frozen_box_is_killed_at_once_and_leaves_no_cgroup(
    boxes: Boxes, spec: BoxSpec, way: str
) -> None:
    box = await boxes.start(spec)
    await counting(boxes, box, "one")
    await boxes.freeze(box)
    record = json.loads((boxes.home(box.id).parent / "freezer.json").read_text())
    running = boxes.processes(box)
    assert await boxes.kill(box.id)
    assert not any(processes.alive(process.id) for process in running)
    if way != "signals":
        assert not Path(record["path"]).exists()


@pytest.mark.usefixtures("way")
async def test_a_successor_thaws_what_a_crash_left_frozen(
    boxes: Boxes, spec: BoxSpec, short_dir: Path, bwrap: Path
) -> None:
    box = await boxes.start(spec)
    await counting(boxes, box, "one")
    await boxes.freeze(box)
    before = number(boxes, "one")
    later = Boxes(short_dir / "data", short_dir / "run", bwrap)
    assert later.thaw_all() == 1
    await until(lambda: number(boxes, "one") > before, "it goes on")


@pytest.mark.usefixtures("way")
async def test_a_cancelled_freeze_leaves_nothing_frozen(
    boxes: Boxes, spec: BoxSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    for cls in (freezer.Cgroup, freezer.Signals):
        monkeypatch.setattr(cls, "frozen", lambda *_: False)  # it would go on for a minute
    box = await boxes.start(spec)
    await counting(boxes, box, "one")
    freezing = asyncio.ensure_future(boxes.freeze(box))
    await until(lambda: (boxes.home(box.id).parent / "freezer.json").exists(), "it has begun")
    freezing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await freezing
    before = number(boxes, "one")
    await until(lambda: number(boxes, "one") > before, "it goes on")


async def test_where_no_cgroup_can_be_made_signals_do(
    boxes: Boxes, spec: BoxSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    nowhere = freezer.Cgroup(Path("/proc/nowhere/x"), "cgroup.freeze", "1", "0")
    monkeypatch.setattr(
        freezer, "ways", lambda place, first: iter([nowhere, freezer.Signals(place)])
    )
    box = await boxes.start(spec)
    await counting(boxes, box, "one")
    await boxes.freeze(box)
    assert {processes.thread_states(p.id.pid) for p in boxes.processes(box)} == {"T"}


async def test_a_box_that_is_gone_cannot_be_frozen(boxes: Boxes, spec: BoxSpec) -> None:
    box = await boxes.start(spec)
    await boxes.kill(box.id)
    with pytest.raises(BoxFailed, match="gone"):
        await boxes.freeze(box)
