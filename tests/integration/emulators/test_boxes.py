"""What can be done in a box, the same on both backends."""

from __future__ import annotations

import asyncio
import secrets
import signal
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from emulators.boxes import Box, Boxes, open_boxes
from emulators.options import Options, Way
from tests.support.emulators.in_box import WITHIN, processes, python, run, wait
from tests.support.requirements import missing
from tests.support.services import free_port, until

AT_ONCE = 3.0
ECHO_SERVER = """
import socket
listener = socket.create_server(("127.0.0.1", 7777))
print("ready")
while True:
    connection, _ = listener.accept()
    while data := connection.recv(65536):
        connection.sendall(data)
    connection.close()
"""
# Mounts without a daemon behind it: the kernel does not wait for one.
FUSE_AS_ROOT = """
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
os.makedirs("/tmp/fuse-root", exist_ok=True)
options = "fd=%d,rootmode=40000,user_id=0,group_id=0" % os.open("/dev/fuse", os.O_RDWR)
if libc.mount(b"test", b"/tmp/fuse-root", b"fuse", 0, options.encode()) != 0:
    raise SystemExit(os.strerror(ctypes.get_errno()))
print("/tmp/fuse-root fuse" in open("/proc/mounts").read())
"""
FUSE_AS_AGENT = """
import os, socket, subprocess
ours, theirs = socket.socketpair()
os.makedirs("/tmp/fuse-agent", exist_ok=True)
os.set_inheritable(theirs.fileno(), True)
subprocess.run(
    ["fusermount3", "--", "/tmp/fuse-agent"],
    env={"_FUSE_COMMFD": str(theirs.fileno()), "PATH": os.environ["PATH"]},
    close_fds=False, check=True,
)
_, fds, _, _ = socket.recv_fds(ours, 1, 1)
print("/tmp/fuse-agent fuse" in open("/proc/mounts").read(), len(fds))
"""


async def test_a_command_gets_its_input_and_its_two_outputs_stay_apart(shared_box: Box) -> None:
    done = await run(shared_box, "sh", "-c", "cat; echo told >&2", stdin=b"given")
    assert (done.exit_code, done.stdout, done.stderr) == (0, "given", "told\n")


@pytest.mark.parametrize(
    ("script", "expected"), [("exit 7", 7), ("exit 137", 137), ("kill -TERM $$", -15)]
)
async def test_an_exit_code_and_a_signal_are_told_apart(
    shared_box: Box, script: str, expected: int
) -> None:
    assert (await run(shared_box, "sh", "-c", script)).exit_code == expected


async def test_a_command_runs_as_the_user_that_was_asked_for(shared_box: Box) -> None:
    script = "id -u; id -g; id -G; echo $HOME $USER; touch $HOME/of-$USER"
    agent = await run(shared_box, "sh", "-c", script)
    assert agent.stdout.split() == ["1000", "1000", "1000", "/home/agent", "agent"]
    root = await run(shared_box, "sh", "-c", script, user="root")
    assert root.stdout.split() == ["0", "0", "0", "/root", "root"]
    assert agent.stderr == root.stderr == ""


async def test_the_environment_is_the_images_then_the_boxs_then_the_commands(
    shared_box: Box,
) -> None:
    done = await run(shared_box, "env", env={"OF_THE_COMMAND": "1", "OF_THE_BOX": "overruled"})
    found = dict(line.split("=", 1) for line in done.stdout.splitlines())
    assert found["OF_THE_COMMAND"] == "1"
    assert found["OF_THE_BOX"] == "overruled"
    assert found["LANG"] == "C"
    assert found["PATH"].startswith("/opt/harness/bin:")
    assert (await run(shared_box, "printenv", "OF_THE_BOX")).stdout == "yes\n"


async def test_what_cannot_be_started_is_an_error_that_names_it(shared_box: Box) -> None:
    with pytest.raises(FileNotFoundError) as found:
        await shared_box.exec(["no-such-program"])
    assert found.value.filename == "no-such-program"
    with pytest.raises(PermissionError):
        await shared_box.exec(["/etc/passwd"])
    with pytest.raises(FileNotFoundError) as found:
        await shared_box.exec(["true"], cwd="/no/such/place")
    assert found.value.filename == "/no/such/place"
    with pytest.raises(NotADirectoryError):
        await shared_box.exec(["true"], cwd="/etc/passwd")
    with pytest.raises(PermissionError):
        await shared_box.exec(["true"], cwd="/root")


async def test_a_command_has_ended_although_what_it_left_holds_its_output(shared_box: Box) -> None:
    process = await shared_box.exec(["sh", "-c", "sleep 4711 & echo left"])
    assert await process.stdout.readline() == b"left\n"
    assert await wait(process) == 0
    assert await processes(shared_box, "sleep 4711")
    await process.kill()  # its session is still there
    assert not await processes(shared_box, "sleep 4711")


async def test_kill_ends_the_whole_tree_also_what_has_a_session_of_its_own(
    shared_box: Box,
) -> None:
    other = await shared_box.exec(["sleep", "4712"])
    tree = await shared_box.exec(
        ["sh", "-c", "trap '' TERM; setsid sh -c 'sleep 4713 & sleep 4713' & sleep 4713; true"]
    )
    async with asyncio.timeout(WITHIN):
        while len(await processes(shared_box, "^sleep 4713")) < 3:
            await asyncio.sleep(0.02)
    async with asyncio.timeout(WITHIN):  # by itself it goes on for more than an hour
        await tree.kill()
    assert await wait(tree) == -signal.SIGKILL
    assert not await processes(shared_box, "sleep 4713")
    assert other.exit_code is None
    await other.kill()


async def test_a_signal_reaches_the_command_alone(shared_box: Box) -> None:
    process = await shared_box.exec(
        ["sh", "-c", "trap 'echo caught; exit 3' USR1; echo ready; while :; do sleep 0.01; done"]
    )
    assert await process.stdout.readline() == b"ready\n"
    assert process.signal(signal.SIGUSR1)
    assert await process.stdout.readline() == b"caught\n"
    assert await wait(process) == 3
    assert not process.signal(signal.SIGUSR1)


async def test_a_killed_command_has_ended_although_nobody_reads_its_output(
    shared_box: Box,
) -> None:
    process = await shared_box.exec(["yes", "y" * 1000])
    async with asyncio.timeout(WITHIN):  # nothing but the kill ends it
        await process.kill()
    assert await wait(process) == -signal.SIGKILL


async def test_a_closed_pipe_ends_a_command_as_it_does_anywhere(shared_box: Box) -> None:
    done = await run(shared_box, "bash", "-c", "set -o pipefail; yes | head -1")
    assert (done.exit_code, done.stdout, done.stderr) == (128 + signal.SIGPIPE, "y\n", "")


async def test_commands_at_the_same_time_do_not_mix(shared_box: Box) -> None:
    results = await asyncio.gather(
        *(run(shared_box, "sh", "-c", f"cat; exit {n}", stdin=str(n).encode()) for n in range(20))
    )
    assert [(each.exit_code, each.stdout) for each in results] == [(n, str(n)) for n in range(20)]


async def test_a_file_comes_back_as_it_was_written(shared_box: Box) -> None:
    data = secrets.token_bytes(3 << 20)
    await shared_box.write("/session/workspace/deep/er/file", data)
    assert await shared_box.read("/session/workspace/deep/er/file") == data
    await shared_box.write("/session/workspace/deep/er/file", b"short", mode=0o600)
    assert await shared_box.read("/session/workspace/deep/er/file") == b"short"
    shown = await run(
        shared_box, "stat", "-c", "%U %a", "/workspace/deep", "/workspace/deep/er/file"
    )
    assert shown.stdout == "agent 755\nagent 600\n"


async def test_files_are_read_and_written_with_the_users_own_rights(shared_box: Box) -> None:
    await shared_box.write("/root/secret", b"roots", user="root", mode=0o600)
    with pytest.raises(PermissionError):
        await shared_box.read("/root/secret")
    with pytest.raises(PermissionError):
        await shared_box.write("/root/mine", b"")
    assert await shared_box.read("/root/secret", user="root") == b"roots"
    with pytest.raises(FileNotFoundError) as found:
        await shared_box.read("/tmp/none")
    assert found.value.filename == "/tmp/none"
    with pytest.raises(IsADirectoryError):
        await shared_box.read("/etc")
    with pytest.raises(NotADirectoryError):
        await shared_box.write("/etc/passwd/below", b"", user="root")


async def test_a_link_in_the_box_leads_to_the_boxs_own_files(
    shared_box: Box, tmp_path: Path
) -> None:
    ours = tmp_path / "of-the-host"
    ours.write_text("not for the box")
    assert (await run(shared_box, "ln", "-sf", str(ours), "/tmp/link")).exit_code == 0
    with pytest.raises(FileNotFoundError):
        await shared_box.read("/tmp/link", user="root")


async def test_a_port_in_the_box_is_reached_and_a_silent_one_refuses(shared_box: Box) -> None:
    with pytest.raises(ConnectionRefusedError):
        await shared_box.connect(7777)
    server = await python(shared_box, ECHO_SERVER)
    reader, writer = await shared_box.connect(7777)
    async with asyncio.timeout(WITHIN):
        writer.write(b"hello")
        assert await reader.readexactly(5) == b"hello"
        await server.kill()
        assert await reader.read() == b""
    writer.close()


async def test_a_box_has_no_network_but_its_own_loopback(shared_box: Box) -> None:
    shown = await run(shared_box, "cat", "/proc/net/dev")
    names = {line.split(":")[0].strip() for line in shown.stdout.splitlines() if ":" in line}
    assert names <= {"lo", "tunl0", "sit0", "ip6tnl0", "gre0", "gretap0", "erspan0", "ip_vti0"}
    assert "lo" in names
    assert len((await run(shared_box, "cat", "/proc/net/route")).stdout.splitlines()) == 1
    with socket.create_server(("127.0.0.1", 0)) as listener:
        script = "import socket, sys; socket.create_connection(('127.0.0.1', int(sys.argv[1])))"
        tried = await run(shared_box, "python3", "-c", script, str(listener.getsockname()[1]))
    assert "ConnectionRefusedError" in tried.stderr


async def test_root_inside_may_mount_fuse(shared_box: Box, fuse: None) -> None:
    done = await run(shared_box, "python3", "-c", FUSE_AS_ROOT, user="root")
    assert (done.stdout, done.stderr) == ("True\n", "")


async def test_an_ordinary_user_inside_may_mount_fuse(shared_box: Box, fuse: None) -> None:
    if (await run(shared_box, "sh", "-c", "command -v fusermount3")).exit_code != 0:
        missing("fusermount", "boxes have no fusermount3")
    done = await run(shared_box, "python3", "-c", FUSE_AS_AGENT)
    assert (done.stdout, done.stderr) == ("True 1\n", "")


async def test_root_inside_is_not_the_machines_root(shared_box: Box) -> None:
    shown = await run(shared_box, "sh", "-c", "grep CapBnd /proc/self/status", user="root")
    # SYS_ADMIN, SETUID, SETGID, CHOWN, DAC_OVERRIDE, KILL, FOWNER
    assert int(shown.stdout.split()[1], 16) == 0x2000EB


async def test_a_box_has_boxd(shared_box: Box) -> None:
    done = await run(shared_box, "ls", "/opt/holdfast/boxd")
    assert "__main__.py" in done.stdout.split()


@pytest.fixture(scope="module")
def reached() -> tuple[int, int]:
    """A port where tests listen, and one where nobody does."""
    return free_port(), free_port()


@pytest.fixture(scope="module")
def elsewhere() -> Way:
    return Way(8790, "127.0.0.2", free_port())


@pytest.fixture(scope="module")
async def reaching(
    options: Options, reached: tuple[int, int], elsewhere: Way
) -> AsyncIterator[Boxes]:
    ways = (*(Way.read(str(port)) for port in reached), elsewhere)
    given = Options(**{**vars(options), "reach": ways})
    async with open_boxes(given) as opened:
        yield opened


async def test_a_reached_port_leads_to_ours_also_after_a_restart(
    reaching: Boxes, reached: tuple[int, int]
) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # only after its end of file: both directions close by themselves
        writer.write(b"got " + await reader.read())
        writer.close()

    box = await reaching.create("reaching", {})
    script = """
import socket, sys
with socket.create_connection(("127.0.0.1", int(sys.argv[1]))) as ours:
    ours.sendall(b"x" * 1_000_000)
    ours.shutdown(socket.SHUT_WR)
    print(sum(map(len, iter(lambda: ours.recv(65536), b""))))
"""
    async with await asyncio.start_server(answer, "127.0.0.1", reached[0]):
        first = await run(box, "python3", "-c", script, str(reached[0]))
        await box.stop()
        await box.start()
        second = await run(box, "python3", "-c", script, str(reached[0]))
    assert (first.stdout, first.stderr) == (second.stdout, second.stderr) == ("1000004\n", "")


async def test_a_reached_port_may_lead_to_another_host_and_port(
    reaching: Boxes, elsewhere: Way
) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"from elsewhere")
        writer.close()

    box = await reaching.create("elsewhere", {})
    script = "import socket; print(socket.create_connection(('127.0.0.1', 8790)).recv(99))"
    async with await asyncio.start_server(answer, elsewhere.host, elsewhere.to):
        done = await run(box, "python3", "-c", script)
    assert (done.stdout, done.stderr) == ("b'from elsewhere'\n", "")


async def test_a_reached_port_where_nobody_listens_fails_at_once(
    reaching: Boxes, reached: tuple[int, int]
) -> None:
    box = await reaching.create("in-vain", {})
    script = """
import socket, sys
ours = socket.create_connection(("127.0.0.1", int(sys.argv[1])), timeout=20)
ours.recv(1)
"""
    tried = await run(box, "python3", "-c", script, str(reached[1]))
    assert "ConnectionResetError" in tried.stderr, "it is not the script's timeout that ended it"


async def test_a_reached_connection_ends_with_its_box(
    reaching: Boxes, reached: tuple[int, int]
) -> None:
    destroyed, ended = asyncio.Event(), asyncio.Event()

    async def hold(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"ready\n")
        try:
            await destroyed.wait()  # an end of file does not move it
            while True:
                writer.write(b"more")
                await writer.drain()
                await asyncio.sleep(0.01)
        except ConnectionError:
            ended.set()
        finally:
            writer.close()

    box = await reaching.create("held", {})
    script = """
import socket, sys, time
ours = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
print(ours.recv(6).decode(), end="")
time.sleep(600)
"""
    async with await asyncio.start_server(hold, "127.0.0.1", reached[0]):
        await python(box, script, str(reached[0]))
        async with asyncio.timeout(WITHIN):
            await box.destroy()
        destroyed.set()
        await until(ended.is_set, "our end of the connection is closed")


async def test_a_geesefs_of_the_machine_is_bound_where_boxes_look_for_it(
    options: Options, tmp_path: Path
) -> None:
    program = tmp_path / "geesefs"
    program.write_text("#!/bin/sh\necho it is me\n")
    program.chmod(0o755)
    async with open_boxes(Options(**{**vars(options), "geesefs": program})) as boxes:
        box = await boxes.create("with-geesefs", {})
        assert (await run(box, "/opt/holdfast/geesefs")).stdout == "it is me\n"
