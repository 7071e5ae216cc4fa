"""boxd among processes that hang and processes that multiply: it answers, and ends them."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from emulators.boxes import Box
from emulators.options import Options
from sidecar.providers.base import Command, Sandbox, SandboxSpec
from sidecar.providers.docker import DockerProvider
from tests.integration.boxd.conftest import Boxd, started
from tests.integration.boxd.test_lives import (
    A_FEW,
    COUNT,
    count_by_boxd,
    counted,
    until_counted,
)
from tests.integration.conformance.ways import docker_provider
from tests.support.emulators.in_box import WITHIN, python, run
from tests.support.fork_chains import Chains, Tries, build, build_chain
from tests.support.requirements import missing

HUNG = "/tmp/hung"
# A FUSE mount whose daemon never reads a question. With the daemon's end all of them fail.
HANGS = f"""
import ctypes, os, sys
os.makedirs("{HUNG}", exist_ok=True)
fuse = os.open("/dev/fuse", os.O_RDWR)
options = f"fd={{fuse}},rootmode=40000,user_id=1000,group_id=1000,allow_other".encode()
if ctypes.CDLL(None, use_errno=True).mount(b"hung", b"{HUNG}", b"fuse", 0, options) != 0:
    sys.exit(os.strerror(ctypes.get_errno()))
print("ready")
sys.stdin.read()
"""
# More than any pool of threads has.
MANY = 24
# Its first thread ends, and another one goes on.
LEADERLESS = """
import ctypes, os, threading, time
def count():
    n = 0
    while True:
        n += 1
        with open("/tmp/leaderless.new", "w") as file: file.write(str(n))
        os.rename("/tmp/leaderless.new", "/tmp/leaderless")
        time.sleep(0.01)
threading.Thread(target=count).start()
ctypes.CDLL(None).syscall({"x86_64": 60}.get(os.uname().machine, 93), 0)
"""
# Its parent waits for each to get to its exec.
VFORKS = """
import os, subprocess
n = 0
while True:
    subprocess.run(["/usr/bin/true"]); n += 1
    with open("/tmp/vforks.new", "w") as file: file.write(str(n))
    os.rename("/tmp/vforks.new", "/tmp/vforks")
"""


@pytest.fixture
async def boxd(other_box: Box) -> AsyncIterator[Boxd]:
    async with started(other_box) as running:
        yield running


@pytest.fixture
async def hung(boxd: Boxd, options: Options, fuse: None) -> AsyncIterator[None]:
    if options.backend == "process":
        missing("docker", "boxes that are no containers cannot mount")
    daemon = await python(boxd.box, HANGS, user="root")
    yield
    await daemon.kill()


def hanging(number: int) -> dict[str, Any]:
    """A command that hangs before it begins."""
    argv = ["touch", f"/tmp/ran-{number}"]
    return {"argv": argv, "cwd": HUNG, "env": {}, "timeout": 5}


@pytest.mark.usefixtures("hung")
async def test_commands_that_cannot_start_hold_up_nobody_and_leave_nothing(boxd: Boxd) -> None:
    await boxd.link.call("spawn", argv=["sleep", "4321"], cwd="/", env={})
    path = "/tmp/counter"
    await count_by_boxd(boxd, path)
    starting = [
        asyncio.ensure_future(boxd.link.call("exec", **hanging(number))) for number in range(MANY)
    ]
    async with asyncio.timeout(WITHIN):
        while len(await boxd.running()) < A_FEW:  # copies of boxd that have not got to their exec
            await asyncio.sleep(0.02)
    await boxd.link.freeze(WITHIN)
    stood = await counted(boxd.box, path)
    head, _ = await boxd.link.call("thaw")
    assert head["was_frozen"] is True
    await until_counted(boxd.box, path, stood + A_FEW)
    found = (await boxd.link.call("processes"))[0]["processes"]
    [sleeper] = [each["token"] for each in found if each["argv"][:2] == ["sleep", "4321"]]
    await boxd.link.call("kill", tokens=[sleeper])
    answers = await asyncio.gather(*starting)
    assert {head["exit_code"] for head, _ in answers} == {124}
    assert b"no answer" in answers[0][1]
    assert await boxd.exec("echo", "here") == (0, b"here\n")


async def test_what_was_given_up_does_nothing_when_its_mount_comes_back(
    boxd: Boxd, options: Options, fuse: None
) -> None:
    if options.backend == "process":
        missing("docker", "boxes that are no containers cannot mount")
    daemon = await python(boxd.box, HANGS, user="root")
    head, _ = await boxd.link.call("exec", **{**hanging(0), "timeout": 0.5})
    assert head["exit_code"] == 124
    await daemon.kill()
    async with asyncio.timeout(WITHIN):
        while await boxd.running():
            await asyncio.sleep(0.02)
    assert (await run(boxd.box, "ls", "/tmp/ran-0")).exit_code != 0


async def test_output_that_stays_open_does_not_hold_up_the_answer(boxd: Boxd) -> None:
    """The mark by which a command's processes are found is gone with their environment."""
    nap = str(secrets.randbelow(10_000) + 40_000)
    code, output = await boxd.exec("sh", "-c", f"echo out; env -i setsid sleep {nap} & exit 7")
    assert (code, output) == (7, b"out\n")


async def test_a_process_without_its_first_thread_is_frozen_and_listed(boxd: Boxd) -> None:
    await boxd.link.call("spawn", argv=["python3", "-c", LEADERLESS], cwd="/", env={})
    await until_counted(boxd.box, "/tmp/leaderless", A_FEW)
    [process] = (await boxd.link.call("processes"))[0]["processes"]
    await boxd.link.freeze(WITHIN)
    stood = await counted(boxd.box, "/tmp/leaderless")
    assert await boxd.exec("sleep", "0.1") == (0, b"")
    assert await counted(boxd.box, "/tmp/leaderless") == stood
    await boxd.link.thaw()
    await until_counted(boxd.box, "/tmp/leaderless", stood + A_FEW)
    await boxd.link.call("kill", tokens=[process["token"]])
    assert await boxd.running() == []


@pytest.fixture
async def docker_host(short_dir: Path, sandbox_image: str) -> AsyncIterator[DockerProvider]:
    short_dir.chmod(0o755)
    async with docker_provider(short_dir, sandbox_image) as provider:
        yield provider


@pytest.fixture
async def container(short_dir: Path, docker_host: DockerProvider) -> Sandbox:
    """A sandbox whose first process is boxd, with a limit of processes."""
    gateway = short_dir / "run" / "gateway" / "s" / "sock"
    gateway.parent.mkdir(parents=True)
    gateway.touch()
    labels = {"session": "s", "epoch": "1"}
    return await docker_host.create(SandboxSpec("s-1", "s", labels, gateway))


async def test_a_fork_bomb_is_listed_frozen_and_ended(container: Sandbox, tmp_path: Path) -> None:
    await container.spawn(Command(["sleep", "4321"], cwd="/"))
    await container.write("/tmp/bomb", build("fork_bomb", tmp_path), 0o755)
    await container.spawn(Command(["/tmp/bomb"], cwd="/"))
    async with asyncio.timeout(WITHIN):
        while len(found := await container.processes()) < 200:
            await asyncio.sleep(0.05)
    await container.kill([each for each in found if each.argv[:2] == ("sleep", "4321")])
    await container.freeze()
    await container.kill(await container.processes())
    assert await container.processes() == []
    await container.thaw()
    assert (await container.exec(Command(["echo", "here"], cwd="/"))).stdout == b"here\n"


async def test_a_sandbox_stands_still_until_the_last_who_froze_it_lets_go(
    docker_host: DockerProvider, container: Sandbox
) -> None:
    """A sidecar that comes back meets the freeze of the one before it."""
    await container.spawn(Command(["sh", "-c", COUNT, "sh", "/tmp/counter"], cwd="/"))

    async def count() -> int:
        shown = await container.exec(Command(["sh", "-c", "cat /tmp/counter || echo 0"], cwd="/"))
        return int(shown.stdout)

    async def until_more(than: int) -> None:
        async with asyncio.timeout(WITHIN):
            while await count() <= than:
                await asyncio.sleep(0.02)

    await until_more(0)
    second = await docker_host.attach(container.id)
    await container.freeze()
    await second.freeze()
    await container.thaw()
    stood = await count()
    assert (await container.exec(Command(["sleep", "0.2"], cwd="/"))).exit_code == 0
    assert await count() == stood
    await second.thaw()
    await until_more(stood)


async def test_chains_that_change_their_session_are_frozen_where_all_processes_are_ours(
    container: Sandbox, tmp_path: Path
) -> None:
    chains = Chains(container, 4)
    await chains.start(build_chain(tmp_path), sessions=True)
    found = Tries()
    for _ in range(3):
        await found.freeze(chains)
    assert found == Tries(tries=3)


async def test_beside_chains_a_vfork_is_frozen_and_a_stopped_job_stays_stopped(
    container: Sandbox, tmp_path: Path
) -> None:
    async def show(command: str) -> str:
        shown = await container.exec(Command(["sh", "-c", command], cwd="/"))
        return shown.stdout.decode().strip()

    async def vforks() -> int:
        return int(await show("cat /tmp/vforks || echo 0"))

    async def until_more(than: int) -> None:
        async with asyncio.timeout(WITHIN):
            while await vforks() <= than:
                await asyncio.sleep(0.02)

    await container.spawn(Command(["sleep", "4321"], cwd="/"))
    await show("pkill -STOP sleep")
    await container.spawn(Command(["python3", "-c", VFORKS], cwd="/"))
    await until_more(0)
    chains = Chains(container, 4)
    await chains.start(build_chain(tmp_path))
    for _ in range(3):
        await container.freeze()
        stood = await vforks()
        assert await show("sleep 0.1; echo here") == "here"
        assert await vforks() == stood
        await container.thaw()
        await until_more(stood)
        assert await show("ps -C sleep -o stat=") == "Ts"
