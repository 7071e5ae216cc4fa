"""A supervisor that is SIGKILLed leaves nothing that blocks the next start."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from stack.embedded.launch import identity
from stack.embedded.processes import end_strays, is_running
from tests.support.paths import ROOT
from tests.support.services import until
from tests.support.stack.parts import STUBBORN, WELL_BEHAVED, exists, pids

SUPERVISOR = """
import asyncio, pathlib, sys
from stack.embedded.logs import Logs
from stack.embedded.supervisor import Supervisor
from tests.support.stack.parts import part
home, code = pathlib.Path(sys.argv[1]), sys.argv[2]
one = part(home, "one", code, stop_seconds=0.5)
asyncio.run(Supervisor((one,), pids=home / "pids", logs=Logs(home)).run())
"""


@contextlib.contextmanager
def supervisor_of(home: Path, code: str) -> Iterator[subprocess.Popen[bytes]]:
    (home / "pids").mkdir()
    process = subprocess.Popen(
        (sys.executable, "-c", SUPERVISOR, str(home), code),
        cwd=ROOT,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait(10)


async def test_parts_get_their_signal_when_the_supervisor_is_killed(tmp_path: Path) -> None:
    with supervisor_of(tmp_path, WELL_BEHAVED) as supervisor:
        await until(lambda: pids(tmp_path, "one"), "the part", within=20)
        supervisor.kill()
        supervisor.wait(10)
        await until(lambda: not any(map(exists, pids(tmp_path, "one"))), "the part to leave")
    assert (tmp_path / "order").read_text() == "one\n"
    assert await end_strays(tmp_path / "pids") == []
    assert list((tmp_path / "pids").iterdir()) == []


async def test_a_part_that_ignores_it_is_ended_by_the_next_start(tmp_path: Path) -> None:
    with supervisor_of(tmp_path, STUBBORN) as supervisor:
        await until(lambda: pids(tmp_path, "one"), "the part", within=20)
        supervisor.kill()
        supervisor.wait(10)
        family = pids(tmp_path, "one")
        assert all(map(exists, family)), "the test needs a part that survives"
        async with asyncio.timeout(20):  # by itself it never ends
            assert await end_strays(tmp_path / "pids") == ["one"]
        await until(lambda: not any(map(exists, family)), "the whole group to be gone")
    assert list((tmp_path / "pids").iterdir()) == []


async def test_a_process_that_got_the_pid_of_a_part_is_left_alone(tmp_path: Path) -> None:
    bystander = await asyncio.create_subprocess_exec("sleep", "30")
    who = identity(bystander.pid)
    assert who is not None
    assert is_running(who)
    earlier = {**who, "started": int(who["started"]) - 1}
    record = {"process": earlier, "signal": signal.SIGKILL, "seconds": 1.0}
    (tmp_path / "part.json").write_text(json.dumps(record))
    assert await end_strays(tmp_path) == []
    assert exists(bystander.pid)
    bystander.kill()
    await bystander.wait()


def test_a_process_that_only_waits_to_be_reaped_does_not_run() -> None:
    child = os.fork()
    if child == 0:
        os._exit(0)
    try:
        # its pid stays taken until it is waited for
        os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
        assert identity(child) is None
    finally:
        os.waitpid(child, 0)
