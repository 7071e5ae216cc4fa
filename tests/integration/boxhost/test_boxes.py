"""A box: started, found again, entered, ended with all that is in it."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import signal
from pathlib import Path

import pytest

from sidecar.boxhost import processes, running
from sidecar.boxhost.boxes import HOME, Box, Boxes, BoxFailed, BoxSpec
from sidecar.boxhost.contract import BoxCommand
from sidecar.boxhost.processes import ProcessId
from tests.support.services import until


async def inside(boxes: Boxes, box: Box, script: str) -> str:
    process = await asyncio.create_subprocess_exec(
        *boxes.entering(box, ["/bin/sh", "-c", script], "/"),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env={"PATH": "/usr/bin:/bin", "HOME": HOME},
    )
    output, _ = await process.communicate()
    return output.decode().strip()


async def test_a_start_is_idempotent_by_id(boxes: Boxes, spec: BoxSpec) -> None:
    first = await boxes.start(spec)
    assert await boxes.start(spec) == first
    assert boxes.all() == [first]


async def test_another_host_object_finds_and_ends_the_box(
    boxes: Boxes, spec: BoxSpec, short_dir: Path, bwrap: Path
) -> None:
    box = await boxes.start(spec)
    later = Boxes(short_dir / "data", short_dir / "run", bwrap)
    assert later.get(box.id) == box
    assert await later.kill(box.id)
    assert not box.alive()


async def test_nothing_survives_a_kill_not_even_a_stubborn_daemon(
    boxes: Boxes, spec: BoxSpec
) -> None:
    box = await boxes.start(spec)
    stubborn = "trap '' TERM HUP INT; while :; do sleep 1; done"
    await inside(boxes, box, f'setsid sh -c "{stubborn}" >/dev/null 2>&1 &')
    running = boxes.processes(box)
    assert running, "the daemon did not start"
    assert await boxes.kill(box.id)
    assert not any(processes.alive(process.id) for process in running)
    assert not processes.alive(box.keeper)
    assert not await boxes.kill(box.id), "a second kill has nothing to kill"


async def test_a_box_dies_with_its_keeper(boxes: Boxes, spec: BoxSpec) -> None:
    box = await boxes.start(spec)
    os.kill(box.keeper.pid, signal.SIGKILL)
    await until(lambda: not processes.alive(box.first), "the box is gone")


async def test_a_dead_box_is_replaced_by_a_start_with_its_id(boxes: Boxes, spec: BoxSpec) -> None:
    first = await boxes.start(spec)
    os.kill(first.first.pid, signal.SIGKILL)
    await until(lambda: not first.alive(), "the box is gone")
    second = await boxes.start(spec)
    assert second.alive()
    assert second.first != first.first


async def test_inside_there_is_no_capability_and_no_way_to_one(boxes: Boxes, spec: BoxSpec) -> None:
    box = await boxes.start(spec)
    status = await inside(boxes, box, "grep -E 'Cap(Prm|Eff|Bnd)|NoNewPrivs' /proc/self/status")
    values = dict(line.split(":\t") for line in status.splitlines())
    assert values == {
        "CapPrm": "0" * 16,
        "CapEff": "0" * 16,
        "CapBnd": "0" * 16,
        "NoNewPrivs": "1",
    }
    assert await inside(boxes, box, "id -u") == "1000"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives each session a uid of its own")
async def test_root_runs_each_session_as_a_host_user_of_its_own(
    boxes: Boxes, spec: BoxSpec
) -> None:
    one = await boxes.start(spec)
    other = await boxes.start(dataclasses.replace(spec, id="box-2", session_id="session-2"))
    uids = {Path(f"/proc/{box.first.pid}").stat().st_uid for box in (one, other)}
    assert len(uids) == 2
    assert 0 not in uids


def status_of(pid: int) -> dict[str, str]:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root has capabilities to drop")
async def test_nobody_between_the_keeper_and_the_box_has_or_regains_a_capability(
    boxes: Boxes, spec: BoxSpec
) -> None:
    """bubblewrap's own process is outside of the box's user namespace: what it could get by
    executing a program would be the host's."""
    box = await boxes.start(spec)
    found, pid = [], box.first.pid
    while pid != box.keeper.pid:
        found.append(status_of(pid))
        pid = int(found[-1]["PPid"])
    assert len(found) >= 2
    for status in found:
        sets = {status[name] for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")}
        assert sets == {"0" * 16}
        assert status["NoNewPrivs"] == "1"


async def test_every_namespace_and_the_session_are_the_boxs_own(
    boxes: Boxes, spec: BoxSpec
) -> None:
    box = await boxes.start(spec)
    for name in ("cgroup", "ipc", "mnt", "net", "pid", "user", "uts"):
        of_box, ours = (
            Path(f"/proc/{who}/ns/{name}").readlink() for who in (box.first.pid, "self")
        )
        assert of_box != ours, name
        inside_it = await inside(boxes, box, f"readlink /proc/self/ns/{name}")
        assert inside_it == str(of_box), name
    assert os.getsid(box.first.pid) not in (os.getsid(0), os.getsid(box.keeper.pid))
    assert await inside(boxes, box, "hostname || cat /proc/sys/kernel/hostname") == "sandbox"


async def test_inside_are_only_the_boxs_own_processes_and_network(
    boxes: Boxes, spec: BoxSpec
) -> None:
    box = await boxes.start(spec)
    pids = (await inside(boxes, box, "ls /proc | grep -E '^[0-9]+$'")).split()
    assert len(pids) <= 6, pids
    interfaces = await inside(boxes, box, "tail -n +3 /proc/net/dev | cut -d: -f1")
    assert interfaces.split() == ["lo"]


async def test_only_home_tmp_and_the_session_can_be_written(boxes: Boxes, spec: BoxSpec) -> None:
    box = await boxes.start(spec)
    probe = 'for d in / /usr /etc /opt /home /home/agent /tmp; do touch "$d/x" 2>/dev/null '
    probe += '&& echo "$d"; done; true'
    assert (await inside(boxes, box, probe)).split() == ["/home/agent", "/tmp"]


async def test_a_box_that_cannot_start_says_why_and_leaves_nothing(
    boxes: Boxes, spec: BoxSpec
) -> None:
    broken = dataclasses.replace(spec, session_dir=Path("/nonexistent"))
    with pytest.raises(BoxFailed, match=r"nonexistent|No such file"):
        await boxes.start(broken)
    assert boxes.all() == []


async def test_the_gateway_is_reached_by_tcp_inside_and_nothing_else_is(
    boxes: Boxes, spec: BoxSpec
) -> None:
    async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"from-the-gateway\n")
        writer.close()

    server = await asyncio.start_unix_server(answer, str(spec.gateway_socket))
    outside = await asyncio.start_server(answer, "127.0.0.1", 0)
    port = outside.sockets[0].getsockname()[1]
    async with server, outside:
        box = await boxes.start(spec)
        said = await inside(boxes, box, "bash -c 'cat </dev/tcp/127.0.0.1/8080'")
        assert said == "from-the-gateway"
        refused = await inside(boxes, box, f"bash -c 'cat </dev/tcp/127.0.0.1/{port}' 2>&1")
        assert "Connection refused" in refused


@pytest.mark.parametrize("broken", [None, ""], ids=["no-record", "empty-record"])
async def test_a_box_without_a_record_is_ended_by_whoever_starts_next(
    boxes: Boxes, spec: BoxSpec, short_dir: Path, bwrap: Path, broken: str | None
) -> None:
    box = await boxes.start(spec)
    record = boxes.home(box.id).parent / "box.json"
    record.unlink()  # as if its starter had died before it wrote one
    if broken is not None:
        record.write_text(broken)
    later = Boxes(short_dir / "data", short_dir / "run", bwrap)
    assert await later.end_half_made() == 1
    assert not processes.alive(box.keeper)
    await until(lambda: not processes.alive(box.first), "the box dies with its keeper")
    assert not record.parent.exists()
    assert await later.end_half_made() == 0


async def test_all_boxes_are_stopped_also_those_without_a_record(
    boxes: Boxes, spec: BoxSpec
) -> None:
    box = await boxes.start(spec)
    other = await boxes.start(dataclasses.replace(spec, id="box-2"))
    (boxes.home(box.id).parent / "box.json").unlink()
    assert await boxes.stop_all() == 2
    assert not processes.alive(box.keeper)
    assert not other.alive()


async def test_a_box_is_made_anew_where_one_was_left_half_made(boxes: Boxes, spec: BoxSpec) -> None:
    first = await boxes.start(spec)
    (boxes.home(first.id).parent / "box.json").unlink()
    again = await boxes.start(spec)
    assert again.alive()
    assert not processes.alive(first.keeper)


async def test_the_end_of_a_box_that_is_not_there_removes_nothing(
    boxes: Boxes, spec: BoxSpec, short_dir: Path
) -> None:
    (short_dir / "data" / "mounts").mkdir(parents=True)
    await boxes.start(spec)
    for name in ("no-such-box", "../mounts", ".."):
        assert not await boxes.kill(name)
    assert (short_dir / "data" / "mounts").exists()


async def test_a_command_in_the_middle_of_an_exec_is_ended_too(
    boxes: Boxes, spec: BoxSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has no environment for a moment."""
    box = await boxes.start(spec)
    await running.spawn(boxes, box, BoxCommand(("sleep", "600"), "/", env={"MARK": "x"}))
    await until(lambda: boxes.processes(box), "it runs")
    [sleeper] = boxes.processes(box)
    looks: list[ProcessId] = []
    read = processes.environment

    def read_late(process: ProcessId) -> bytes | None:
        looks.append(process)
        return b"" if len(looks) < 3 else read(process)

    monkeypatch.setattr(processes, "environment", read_late)
    await boxes.kill_marked(box, "MARK", "x")
    assert not processes.alive(sleeper.id)


async def test_output_that_stays_open_does_not_hold_up_the_answer(
    boxes: Boxes, spec: BoxSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running, "OUTPUT_SECONDS", 0.2)
    box = await boxes.start(spec)
    script = "echo out; env -i setsid sleep 600 & exit 7"
    ran = await running.run(boxes, box, BoxCommand(("sh", "-c", script), "/", timeout=60))
    assert (ran.exit_code, ran.stdout) == (7, b"out\n")
