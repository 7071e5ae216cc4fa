from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from stack.embedded.logs import MAX_LINE_BYTES, Logs, parse_line
from stack.embedded.part import Part
from stack.embedded.supervisor import Supervisor
from stack.errors import PartFailed
from tests.support.services import until
from tests.support.stack.parts import STUBBORN, exists, part, pids


@contextlib.asynccontextmanager
async def supervised(home: Path, *parts: Part) -> AsyncIterator[Supervisor]:
    """A supervisor that is stopped at the end of the block, and must then be done."""
    with contextlib.closing(Logs(home)) as logs:
        supervisor = Supervisor(parts, pids=home, logs=logs)
        async with asyncio.timeout(60), asyncio.TaskGroup() as group:
            group.create_task(supervisor.run())
            try:
                yield supervisor
            finally:
                supervisor.stop()


async def run_to_its_end(home: Path, *parts: Part) -> None:
    """Run parts that are expected to stop the stack themselves."""
    with contextlib.closing(Logs(home)) as logs:
        async with asyncio.timeout(30):
            await Supervisor(parts, pids=home, logs=logs).run()


async def ready(supervisor: Supervisor) -> None:
    async with asyncio.timeout(20):
        await supervisor.all_ready.wait()


def said(home: Path, name: str = "stack") -> list[str]:
    lines = (home / f"{name}.log").read_text().splitlines()
    parsed = [parse_line(name, line) for line in lines]
    return [line.text for line in parsed if line is not None]


async def test_a_part_that_is_killed_is_started_again_and_the_log_says_so(tmp_path: Path) -> None:
    async with supervised(tmp_path, part(tmp_path, "a")) as supervisor:
        await ready(supervisor)
        [first] = pids(tmp_path, "a")
        os.kill(first, signal.SIGKILL)
        await until(lambda: pids(tmp_path, "a") != [first], "a second process")
        await until(lambda: supervisor.states[0].state == "ready", "ready again")
        state = supervisor.states[0]
        assert (state.restarts, state.last_exit) == (1, "was killed by SIGKILL")
    assert "a: was killed by SIGKILL, starting again in 0.2 s" in said(tmp_path)
    assert "a: ready again" in said(tmp_path)


async def test_a_part_that_is_stuck_is_started_again_and_is_heard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stack.embedded.supervisor.STUCK_SECONDS", 0.01)
    asked: list[int] = []
    heard: list[str] = []

    async def is_stuck(pid: int) -> bool:
        asked.append(pid)
        return pid == asked[0] and len(asked) == 3

    given = part(tmp_path, "a", is_stuck=is_stuck, hear=heard.append)
    async with supervised(tmp_path, given) as supervisor:
        await ready(supervisor)
        await until(lambda: len(set(asked)) == 2, "a look at the second process")
        assert asked.count(asked[0]) == 3
        assert supervisor.states[0].restarts == 1
    assert "a: does not do its work, killing it" in said(tmp_path)
    assert heard == ["at work", "at work"]


async def test_a_disk_without_room_for_what_a_part_needs_puts_its_start_off(tmp_path: Path) -> None:
    starts = iter([None, OSError("No space left on device"), None])

    async def prepare() -> None:
        wrong = next(starts)
        if wrong is not None:
            raise wrong

    async with supervised(tmp_path, part(tmp_path, "a", prepare=prepare)) as supervisor:
        await ready(supervisor)
        [first] = pids(tmp_path, "a")
        os.kill(first, signal.SIGKILL)
        await until(lambda: pids(tmp_path, "a") != [first], "a second process")
        await until(lambda: supervisor.states[0].state == "ready", "ready again")
    wrong = "a: cannot be started (No space left on device), starting again in 0.4 s"
    assert wrong in said(tmp_path)


async def test_an_exit_code_is_named_in_the_log(tmp_path: Path) -> None:
    code = "import sys, pathlib, os, time\n"
    code += "p = pathlib.Path(sys.argv[1]) / 'once.pid'\n"
    code += "if p.exists(): time.sleep(60)\n"
    code += "p.write_text(str(os.getpid())); time.sleep(0.3); sys.exit(7)\n"

    async with supervised(tmp_path, part(tmp_path, "once", code)):
        log = tmp_path / "stack.log"
        await until(lambda: log.exists() and "exited with code 7" in log.read_text(), "the log")


async def test_the_pause_between_restarts_grows(tmp_path: Path) -> None:
    code = "import os, pathlib, sys\n"
    code += "(pathlib.Path(sys.argv[1]) / 'x.pid').write_text(str(os.getpid()))\n"
    code += "import time; time.sleep(0.2)\n"

    async with supervised(tmp_path, part(tmp_path, "x", code)) as supervisor:
        await until(lambda: supervisor.states[0].restarts >= 3, "three restarts", within=20)
    pauses = [line.rpartition(" in ")[2] for line in said(tmp_path) if "starting again" in line]
    assert pauses[:3] == ["0.2 s", "0.4 s", "0.8 s"]


async def test_a_part_waits_for_what_it_needs(tmp_path: Path) -> None:
    gate = tmp_path / "open"

    async def is_ready(_pid: int) -> bool:
        return gate.exists()

    first = part(tmp_path, "first", is_ready=is_ready)
    second = part(tmp_path, "second", needs=("first",))
    async with supervised(tmp_path, first, second) as supervisor:
        await until(lambda: pids(tmp_path, "first"), "the first part")
        assert [state.state for state in supervisor.states] == ["starting", "waiting"]
        gate.touch()
        await ready(supervisor)
        assert pids(tmp_path, "second")


async def test_a_part_starts_beside_what_it_uses_and_is_ready_after_it(tmp_path: Path) -> None:
    gate = tmp_path / "open"

    async def is_ready(_pid: int) -> bool:
        return gate.exists()

    store = part(tmp_path, "store", is_ready=is_ready)
    # it would be killed if the time that the store takes counted against it
    user = part(tmp_path, "user", uses=("store",), ready_seconds=0.3)
    async with supervised(tmp_path, store, user) as supervisor:
        await until(lambda: pids(tmp_path, "user"), "the user")
        began = time.monotonic()
        await until(lambda: time.monotonic() - began > 0.6, "twice its time")
        assert [state.state for state in supervisor.states] == ["starting", "starting"]
        gate.touch()
        await ready(supervisor)
        assert [state.restarts for state in supervisor.states] == [0, 0]


async def test_parts_stop_in_reverse_order_of_what_they_need_and_use(tmp_path: Path) -> None:
    parts = (
        part(tmp_path, "store"),
        part(tmp_path, "worker", uses=("store",)),
        part(tmp_path, "front", needs=("worker",), uses=("store",)),
    )
    async with supervised(tmp_path, *parts) as supervisor:
        await ready(supervisor)
    assert (tmp_path / "order").read_text().split() == ["front", "worker", "store"]
    assert [state.state for state in supervisor.states] == ["stopped"] * 3


async def test_cleanup_comes_after_its_part_and_before_what_the_part_uses(tmp_path: Path) -> None:
    async def cleanup() -> str:
        with (tmp_path / "order").open("a") as file:
            file.write("cleanup\n")
        return "two boxes ended"

    parts = (part(tmp_path, "store"), part(tmp_path, "worker", uses=("store",), cleanup=cleanup))
    async with supervised(tmp_path, *parts) as supervisor:
        await ready(supervisor)
    assert (tmp_path / "order").read_text().split() == ["worker", "cleanup", "store"]
    assert "worker: two boxes ended" in said(tmp_path)


async def test_a_stubborn_part_and_its_children_are_killed_within_the_bound(tmp_path: Path) -> None:
    async with supervised(tmp_path, part(tmp_path, "s", STUBBORN, stop_seconds=0.5)) as supervisor:
        await ready(supervisor)
        family = pids(tmp_path, "s")
        assert len(family) == 2
    words = said(tmp_path)
    killed = words.index("s: still there after 0.5 s, killing it")
    assert words.index("s: stopping") < killed
    await until(lambda: not any(map(exists, family)), "the whole group to be gone")


async def test_a_part_that_never_comes_up_fails_the_stack_with_its_last_words(
    tmp_path: Path,
) -> None:
    good = part(tmp_path, "good")
    bad = part(tmp_path, "bad", "import sys; sys.exit('no such luck')")
    with pytest.raises(PartFailed, match=r"bad exited with code 1(.|\n)*no such luck"):
        await run_to_its_end(tmp_path, good, bad)
    assert not any(map(exists, pids(tmp_path, "good")))


async def test_a_part_that_is_never_ready_is_killed_and_fails_the_stack(tmp_path: Path) -> None:
    async def never(_pid: int) -> bool:
        return False

    late = part(tmp_path, "a", is_ready=never, ready_seconds=0.3)
    with pytest.raises(PartFailed, match=r"not ready after 0\.3 s"):
        await run_to_its_end(tmp_path, late)
    assert not any(map(exists, pids(tmp_path, "a")))


async def test_a_hook_that_fails_stops_the_stack_before_the_part_starts(tmp_path: Path) -> None:
    async def refuse() -> None:
        raise PartFailed("no room")

    with pytest.raises(PartFailed, match="no room"):
        await run_to_its_end(tmp_path, part(tmp_path, "a", first=refuse))
    assert not pids(tmp_path, "a")


async def test_a_line_without_end_neither_blocks_the_part_nor_is_lost(tmp_path: Path) -> None:
    code = "import os, pathlib, sys, time\n"
    code += "os.write(1, b'x' * 3_000_000 + b'\\xff\\n')\n"
    code += "(pathlib.Path(sys.argv[1]) / 'long.pid').write_text(str(os.getpid()))\n"
    code += "time.sleep(60)\n"

    async with supervised(tmp_path, part(tmp_path, "long", code)) as supervisor:
        await ready(supervisor)
        await until(lambda: "\\xff" in (tmp_path / "long.log").read_text(), "the end of the line")
    lines = said(tmp_path, "long")
    assert sum(line.count("x") for line in lines) >= 3_000_000
    assert max(map(len, lines)) <= 2 * MAX_LINE_BYTES


async def test_a_grandchild_that_keeps_the_pipe_open_does_not_hold_up_a_restart(
    tmp_path: Path,
) -> None:
    code = "import os, pathlib, subprocess, sys, time\n"
    code += "home = pathlib.Path(sys.argv[1])\n"
    code += "p = subprocess.Popen(['sleep', '50'], start_new_session=True)\n"
    code += "with (home / 'sleepers').open('a') as f: f.write(f'{p.pid}\\n')\n"
    code += "(home / 'g.pid').write_text(str(os.getpid())); time.sleep(60)\n"

    try:
        async with supervised(tmp_path, part(tmp_path, "g", code)) as supervisor:
            await ready(supervisor)
            [leader] = pids(tmp_path, "g")
            os.kill(leader, signal.SIGKILL)
            await until(lambda: pids(tmp_path, "g") not in ([leader], []), "the restart")
            first, *_ = (tmp_path / "sleepers").read_text().split()
            assert exists(int(first)), "it was waited for"
    finally:
        for pid in (tmp_path / "sleepers").read_text().split():
            os.kill(int(pid), signal.SIGKILL)


async def test_environment_values_are_not_in_the_repr_of_a_part(tmp_path: Path) -> None:
    assert "hunter2" not in repr(part(tmp_path, "a", env={"PASSWORD": "hunter2"}))
