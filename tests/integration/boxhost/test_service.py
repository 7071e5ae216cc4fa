"""The box-host as a process of its own: what it answers, what it refuses, what outlives it."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from contracts.errors import BoxHostUnavailable, Unreachable
from sidecar.boxhost import processes
from sidecar.boxhost.boxes import Box, Boxes, BoxFailed, BoxSpec
from sidecar.boxhost.client import Patience, RemoteHost, connect
from sidecar.boxhost.contract import BoxCommand, MountKey, MountSick
from sidecar.boxhost.mounts import Mount, MountFailed
from sidecar.boxhost.processes import ProcessId
from sidecar.providers.base import SandboxSpec, Status
from sidecar.providers.local import LocalProvider
from tests.support.box_host import Place, served
from tests.support.paths import ROOT
from tests.support.requirements import missing
from tests.support.services import short_directory

SECRET = "the-key-of-one-session"


@pytest.fixture
def place(short_dir: Path, bwrap: Path) -> Place:
    return Place(short_dir, bwrap)


@pytest.fixture
async def host(place: Place) -> AsyncIterator[RemoteHost]:
    async with served(place) as found:
        yield found


def spec_at(place: Place, session: str | None = None) -> BoxSpec:
    session = session or str(uuid.uuid4())
    socket_path = place.gateway_dir / session / "sock"
    return BoxSpec(f"{session}-1", session, {"session": session}, Path("/unused"), socket_path)


async def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    assert await processes.wait_pid(pid, 10)


async def wire(host: RemoteHost, call: str, **plain: Any) -> Any:
    """A call as it is on the wire, whatever the client would have made of it."""
    answer, _ = await host.wire.ask(call, plain)
    return answer


@pytest.fixture(scope="module")
async def shared(bwrap: Path) -> AsyncIterator[RemoteHost]:
    """One service for the tests that leave nothing behind in it."""
    with short_directory() as home:
        async with served(Place(home, bwrap)) as found:
            yield found


OF_ONE = {"session_id": str(uuid.UUID(int=1))}
MOUNT = {**OF_ONE, "engine": "weed", "uid": None, "key": None}
CALL = {**OF_ONE, "daemon": [1, 1], "bound": 1}


@pytest.mark.parametrize(
    ("call", "asked", "why"),
    [
        ("boxes/living", {"box_id": "../../etc-1"}, "box_id"),
        ("boxes/kill", {"box_id": "box-1"}, "box_id"),
        ("boxes/pack", {"box_id": "..", "kept": [], "left": []}, "box_id"),
        ("mounts/get", {"session_id": "../secrets"}, "session_id"),
        ("mounts/forget", {"session_id": ""}, "session_id"),
        ("mounts/forget", {"session_id": f"{uuid.UUID(int=1)}\n"}, "session_id"),
        ("mounts/mount", {**MOUNT, "engine": "sh"}, "engine"),
        ("mounts/mount", {**MOUNT, "uid": 0}, "uid"),
        ("mounts/mount", {**MOUNT, "argv": ["true"]}, "argv"),
        ("files/walk", {**CALL, "op": "own", "arguments": {"uid": 0}}, "op"),
        ("files/mend", {**CALL, "op": "__init__", "arguments": {"root": "/"}}, "op"),
        ("boxes/shell", {"argv": ["id"]}, "no such call"),
    ],
)
async def test_what_is_no_id_no_engine_and_no_call_is_refused(
    shared: RemoteHost, call: str, asked: dict[str, Any], why: str
) -> None:
    with pytest.raises(BoxHostUnavailable, match=f"{call}: {why}|{why}$"):
        await wire(shared, call, **asked)


async def test_an_id_that_cannot_be_one_is_nobodys(shared: RemoteHost) -> None:
    local = LocalProvider(shared.boxes)
    assert await local.status("../x") is Status.GONE
    assert await local.destroy("../x") is False


async def test_a_box_reaches_no_socket_but_its_own_sessions(host: RemoteHost, place: Place) -> None:
    spec = spec_at(place)
    other = str(uuid.uuid4())
    for path in (
        place.gateway_dir / other / "sock",
        place.gateway_dir / spec.session_id / ".." / other / "sock",
        place.socket,
        Path("/var/run/docker.sock"),
    ):
        with pytest.raises(BoxFailed, match="not the session's socket"):
            await host.boxes.start(
                BoxSpec(spec.id, spec.session_id, spec.labels, Path("/unused"), path)
            )
    assert await host.boxes.all_living() == []


async def test_only_processes_of_the_box_itself_can_be_killed(
    host: RemoteHost, place: Place
) -> None:
    box = await host.boxes.start(spec_at(place))
    bystander = await asyncio.create_subprocess_exec("sleep", "600")
    try:
        identity = processes.identify(bystander.pid)
        assert identity is not None
        await host.boxes.kill_processes(box, [identity])
        assert processes.alive(identity)
    finally:
        bystander.kill()
        await bystander.wait()


async def test_nothing_above_home_is_packed(host: RemoteHost, place: Place) -> None:
    box = await host.boxes.start(spec_at(place))
    make = "mkdir kept; echo x > kept/f"
    await host.boxes.exec(box, BoxCommand(["sh", "-c", make], cwd="/home/agent"))
    assert b"kept/f" in await host.boxes.pack(box.id, ["kept"], [])
    for way in ("..", "../..", "kept/../..", "/etc"):
        assert b"box.json" not in await host.boxes.pack(box.id, [way], [])
        assert b"passwd" not in await host.boxes.pack(box.id, [way], [])


async def test_tens_of_megabytes_of_any_bytes_go_in_and_out(host: RemoteHost, place: Place) -> None:
    box = await host.boxes.start(spec_at(place))
    data = os.urandom(1 << 20) * 32
    ran = await host.boxes.exec(box, BoxCommand(["cat"], cwd="/", stdin=data))
    assert ran.exit_code == 0
    assert ran.stdout == data


async def test_a_cancelled_call_comes_back_when_nothing_of_it_is_left(
    host: RemoteHost, place: Place
) -> None:
    """With so many processes that their end takes longer than the way back."""
    box = await host.boxes.start(spec_at(place))
    script = "for i in $(seq 150); do setsid sleep 600 & done; wait"
    running = asyncio.ensure_future(host.boxes.exec(box, BoxCommand(["sh", "-c", script], cwd="/")))
    async with asyncio.timeout(30):
        while len(await host.boxes.processes(box)) < 150:
            await asyncio.sleep(0.05)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert await host.boxes.processes(box) == []


async def test_a_caller_that_dies_takes_its_command_with_it(host: RemoteHost, place: Place) -> None:
    box = await host.boxes.start(spec_at(place))
    argv = [sys.executable, "-c", CALLER, str(place.socket), box.id]
    caller = await asyncio.create_subprocess_exec(*argv)
    try:
        await _until_there(host, box, "600")
    finally:
        caller.send_signal(signal.SIGKILL)
        await caller.wait()
    async with asyncio.timeout(20):
        while await host.boxes.processes(box):
            await asyncio.sleep(0.05)


CALLER = """
import asyncio, sys
from pathlib import Path
from sidecar.boxhost.client import connect
from sidecar.boxhost.contract import BoxCommand

async def main():
    async with connect(Path(sys.argv[1])) as host:
        box = await host.boxes.living(sys.argv[2])
        await host.boxes.exec(box, BoxCommand(["sleep", "600"], cwd="/"))

asyncio.run(main())
"""


async def _until_there(host: RemoteHost, box: Box, word: str) -> None:
    async with asyncio.timeout(20):
        while not any(word in process.argv for process in await host.boxes.processes(box)):
            await asyncio.sleep(0.05)


async def test_boxes_outlive_the_service_and_a_frozen_one_stays_so_until_it_is_thawed(
    place: Place,
) -> None:
    """A barrier goes on with the next service, and what it proves must stand still."""
    try:
        with place.serving() as pid:
            async with connect(place.socket) as host:
                box = await host.boxes.start(spec_at(place))
                tick = "while true; do date +%s%N > /home/agent/tick; sleep 0.05; done"
                await host.boxes.spawn(box, BoxCommand(["sh", "-c", tick], cwd="/"))
                await host.boxes.freeze(box)
                await kill(pid)
        with place.serving():
            async with connect(place.socket) as host:
                assert await host.boxes.living(box.id) == box
                before = await _ticked(host, box)
                await host.boxes.exec(box, BoxCommand(["sleep", "0.3"], cwd="/"))
                assert await _ticked(host, box) == before
                await LocalProvider(host.boxes).attach(box.id)
                async with asyncio.timeout(20):
                    while await _ticked(host, box) == before:
                        await asyncio.sleep(0.05)
    finally:
        await place.stop_all()


async def _ticked(host: RemoteHost, box: Box) -> bytes:
    ran = await host.boxes.exec(box, BoxCommand(["cat", "/home/agent/tick"], cwd="/"))
    return ran.stdout


async def test_boxes_end_with_a_service_that_is_told_so(short_dir: Path, bwrap: Path) -> None:
    place = Place(short_dir, bwrap, {"HOLDFAST_BOXHOST_ENDS_ALL": "true"})
    try:
        with place.serving():
            async with connect(place.socket) as host:
                box = await host.boxes.start(spec_at(place))
        assert not box.alive()
        assert Boxes(place.data, place.run, place.bwrap).get(box.id) is None
    finally:
        await place.stop_all()


async def test_what_died_with_the_service_is_cleared_away_at_its_start(place: Place) -> None:
    boxes = Boxes(place.data, place.run, place.bwrap)
    try:
        with place.serving():
            async with connect(place.socket) as host:
                box = await host.boxes.start(spec_at(place))
        for process in (box.first, box.keeper):
            processes.kill(process)
            assert await processes.wait_gone(process, 10)
        assert boxes.get(box.id) is not None
        with place.serving():
            async with connect(place.socket) as host:
                assert await host.boxes.living(box.id) is None
        assert boxes.get(box.id) is None
        assert not Path(box.agent_socket).exists()
    finally:
        await place.stop_all()


async def test_a_service_that_comes_back_in_time_is_not_missed(place: Place) -> None:
    try:
        with place.serving() as pid:
            async with connect(place.socket) as host:
                box = await host.boxes.start(spec_at(place))
                await kill(pid)
                asking = asyncio.ensure_future(host.boxes.living(box.id))
                running = asyncio.ensure_future(
                    host.boxes.exec(box, BoxCommand(["echo", "back"], cwd="/"))
                )
                with place.serving():
                    assert await asking == box
                    assert (await running).stdout == b"back\n"
    finally:
        await place.stop_all()


async def test_without_an_answer_nothing_is_gone_and_nothing_is_made(place: Place) -> None:
    """A rival of a living box is the one unforgivable error."""
    try:
        with place.serving() as pid:
            async with connect(place.socket) as patient:
                box = await patient.boxes.start(spec_at(place))
            async with connect(place.socket, Patience(away=0.5)) as host:
                await kill(pid)
                local = LocalProvider(host.boxes)
                assert await local.status(box.id) is Status.UNKNOWN
                with pytest.raises(Unreachable, match="box-host"):
                    await local.attach(box.id)
                with pytest.raises(Unreachable, match="box-host"):
                    _ = [info async for info in local.list({})]
                with pytest.raises(BoxHostUnavailable):
                    await host.mounts.get(str(uuid.uuid4()))
                spec = SandboxSpec("k", "s", {}, place.socket, place.home)
                with pytest.raises(Unreachable, match="box-host"):
                    await local.create(spec)
    finally:
        await place.stop_all()


async def test_a_command_that_may_have_run_is_not_run_again(place: Place) -> None:
    try:
        with place.serving() as pid:
            async with connect(place.socket) as host:
                box = await host.boxes.start(spec_at(place))
                script = "echo once >> /home/agent/runs; sleep 600"
                running = asyncio.ensure_future(
                    host.boxes.exec(box, BoxCommand(["sh", "-c", script], cwd="/"))
                )
                await _until_there(host, box, "600")
                await kill(pid)
                with place.serving():
                    async with asyncio.timeout(30):
                        with pytest.raises(BoxHostUnavailable):
                            await running
                    seen = await host.boxes.exec(box, BoxCommand(["cat", "/home/agent/runs"], "/"))
                    assert seen.stdout == b"once\n"
                    left = [p.argv for p in await host.boxes.processes(box)]
                    assert left == [], "what the service ran died with it"
    finally:
        await place.stop_all()


async def test_a_second_service_leaves_the_first_one_its_socket(
    host: RemoteHost, place: Place
) -> None:
    argv = [sys.executable, "-m", "sidecar.boxhost", "serve"]
    second = await asyncio.create_subprocess_exec(
        *argv, env=place.environment, stderr=subprocess.PIPE
    )
    try:
        async with asyncio.timeout(30):
            _, said = await second.communicate()
    finally:
        if second.returncode is None:
            second.kill()
            await second.wait()
    assert second.returncode == 1
    assert b"another box-host listens" in said
    assert await host.boxes.all_living() == []


async def test_the_health_check_tells_whether_it_answers(place: Place) -> None:
    def check() -> int:
        script = ROOT / "docker" / "healthy.py"
        argv = [sys.executable, "-I", "-S", str(script), f"unix:{place.socket}", "/healthz"]
        return subprocess.run(argv, check=False, timeout=60).returncode

    assert await asyncio.to_thread(check) == 1
    async with served(place):
        assert await asyncio.to_thread(check) == 0


async def test_the_sidecars_user_alone_can_connect_to_it_and_to_its_boxes(
    short_dir: Path, bwrap: Path
) -> None:
    if os.geteuid() != 0:
        missing("root", "only root can give a socket away")
    uid = 1000
    place = Place(short_dir, bwrap, {"HOLDFAST_BOXHOST_CLIENT_UID": str(uid)})
    short_dir.chmod(0o711)
    place.run.mkdir()
    place.run.chmod(0o711)
    async with served(place) as host:
        box = await host.boxes.start(spec_at(place))
        for path in (place.socket, Path(box.agent_socket)):
            assert path.stat().st_mode & 0o777 == 0o600
            assert await asyncio.to_thread(connects, path, uid)
            assert not await asyncio.to_thread(connects, path, uid + 1)


def connects(path: Path, uid: int) -> bool:
    script = "import socket, sys; socket.socket(socket.AF_UNIX).connect(sys.argv[1])"
    argv = ["python3", "-I", "-S", "-c", script, str(path)]
    done = subprocess.run(argv, user=uid, group=uid, extra_groups=[], check=False, timeout=30)
    return done.returncode == 0


async def test_a_key_is_in_no_log_and_no_error(host: RemoteHost, place: Place) -> None:
    session, key = str(uuid.uuid4()), MountKey("access", SECRET)
    with pytest.raises(MountFailed) as failed:
        await host.mounts.mount(session, "geesefs", None, key)
    with pytest.raises(BoxHostUnavailable) as refused:
        await wire(host, "mounts/mount", session_id=session, key={"secret_key": [SECRET]})
    assert SECRET not in str(failed.value) + str(refused.value)
    assert SECRET not in place.log.read_text() + repr(key)


async def test_a_mount_that_is_not_the_one_the_caller_knows_is_not_touched(
    host: RemoteHost,
) -> None:
    known = Mount(str(uuid.uuid4()), "weed", ProcessId(1, 1), Path("/"))
    assert not await host.mounts.alive(known)
    with pytest.raises(MountSick) as sick:
        await host.mounts.files(known).call("scan", bound=5, token="", held=[])
    assert sick.value.kind == "ENOTCONN"
