"""A whole stack, with an agent in it that means harm: what it prints, plants and leaves behind."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import subprocess
import sys
import zipfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from client import Holdfast
from contracts.bodies import Session
from contracts.errors import FileNotFound, NotFound, OverQuota
from contracts.redaction import MASK
from tests.e2e.conftest import QUOTA, Keyed, of_type, output, run, wait_for_event
from tests.support.light_agent.tree import LIGHT
from tests.support.running_stack import RunningStack
from tests.support.services import until

pytestmark = pytest.mark.xdist_group("keyed-stack")


@pytest.fixture
def stack(keyed: Keyed) -> RunningStack:
    """The one with tight limits."""
    return keyed.stack


@pytest.fixture
async def hf(stack: RunningStack) -> AsyncIterator[Holdfast]:
    async with Holdfast(stack.url, stack.token) as client:
        yield client


@pytest.fixture
async def session(hf: Holdfast) -> AsyncIterator[Session]:
    made = await hf.sessions.create(**LIGHT)
    yield made
    await hf.sessions.delete(made.id)


def secrets_of_stack(stack: RunningStack) -> list[str]:
    found = [stack.token, json.loads((stack.data_dir / "store.json").read_text())["secret_key"]]
    found += [path.read_text().strip() for path in (stack.data_dir / "secrets").iterdir()]
    return sorted({secret for secret in found if len(secret) >= 12})


def command_lines() -> list[str]:
    """Of every process of this machine, sandboxes' included."""
    lines = []
    for place in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            lines.append(place.read_bytes().replace(b"\0", b" ").decode("utf-8", "replace"))
    return lines


async def test_no_secret_stands_on_any_command_line_while_a_turn_runs(
    hf: Holdfast, session: Session, stack: RunningStack
) -> None:
    turn = await hf.turns.start(session.id, "run: sleep 61")
    await wait_for_event(hf, turn, "tool.call")
    await until(lambda: any(line == "sleep 61 " for line in command_lines()), "it sleeps", 30)
    lines = command_lines()
    await hf.turns.cancel(session.id, turn.id)
    await wait_for_event(hf, turn, "turn.cancelled")
    for part in ("-m api", "-m sidecar", "-m sidecar.gateway", "keeper.py"):
        assert any(part in line for line in lines), f"the search does not see {part}"
    secrets = secrets_of_stack(stack)
    assert len(secrets) >= 4
    shown = [line[:80] for line in lines for secret in secrets if secret in line]
    assert shown == []


async def test_no_part_and_no_sandbox_leaves_its_memory_in_a_file(
    hf: Holdfast, session: Session, stack: RunningStack
) -> None:
    state = stack.state
    assert state is not None
    pids = {part.name: part.pid for part in state.parts if part.pid}
    assert {"api", "sidecar", "gateway", "postgres", "seaweedfs"} <= pids.keys()
    for name, pid in pids.items():
        limits = Path(f"/proc/{pid}/limits").read_text().splitlines()
        (core,) = [line for line in limits if line.startswith("Max core file size")]
        assert core.split()[4:6] == ["0", "0"], name
    assert "0 0" in output(await run(hf, session, "run: echo $(ulimit -Sc) $(ulimit -Hc)"))


def test_a_process_says_that_it_cannot_be_dumped() -> None:
    script = (
        "import ctypes; from contracts.hardening import no_core_dumps; no_core_dumps();"
        "import resource; print(ctypes.CDLL(None).prctl(3, 0, 0, 0, 0),"
        " resource.getrlimit(resource.RLIMIT_CORE))"
    )
    said = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True
    )
    assert said.stdout.split("\n")[0] == "0 (0, 0)"


async def test_a_secret_that_a_tool_prints_is_masked_in_transcript_journal_and_log(
    hf: Holdfast, session: Session, stack: RunningStack
) -> None:
    sidecars = [
        path.read_text().strip()
        for path in (stack.data_dir / "secrets").iterdir()
        if "sidecar" in path.name
    ]
    known = {stack.token, *sidecars, secrets_in_store(stack)}
    await hf.files.put(session.id, "found.txt", "\n".join(sorted(known)).encode())
    events = await run(hf, session, "run: cat found.txt\nrun: tr '\\n' ' ' < found.txt; echo done")
    shown = "".join(event.model_dump_json() for event in events)
    assert shown.count(MASK) >= 2 * len(known)
    written = shown + "".join(
        path.read_text(errors="replace")
        for place in ("runs", "logs")
        for path in (stack.data_dir / place).rglob("*")
        if path.is_file()
    )
    own = {stack.token}  # which the sidecar does not know: its journal is for the api alone
    assert [secret for secret in known if secret in shown] == []
    assert [secret for secret in known - own if secret in written] == []


def secrets_in_store(stack: RunningStack) -> str:
    return str(json.loads((stack.data_dir / "store.json").read_text())["secret_key"])


async def test_a_turn_that_leaves_too_much_is_durable_and_the_next_one_waits_for_room(
    hf: Holdfast, session: Session
) -> None:
    events = await run(hf, session, f"run: head -c {QUOTA + 1} /dev/zero > big")
    (quota,) = of_type(events, "quota")
    (receipt,) = of_type(events, "receipt")
    assert quota.bytes == receipt.bytes == QUOTA + 1
    assert quota.most_bytes == QUOTA
    assert events[-1].type == "turn.completed"
    with pytest.raises(OverQuota, match=str(QUOTA)):
        await hf.turns.start(session.id, "say hi")
    with pytest.raises(OverQuota):
        await hf.files.put(session.id, "more", b"x")
    await hf.files.delete(session.id, "big")
    async with asyncio.timeout(60):
        while True:  # a mount may take a moment to let the store know
            try:
                events = await run(hf, session, "say hi")
                break
            except OverQuota:
                await asyncio.sleep(0.2)
    assert of_type(events, "quota") == []


async def test_links_that_an_agent_plants_show_nothing_of_the_host(
    hf: Holdfast, session: Session
) -> None:
    links = "ln -s /etc etc; ln -s /proc/self proc; ln -s ../../.. up; ln -s /etc/passwd file"
    await run(hf, session, f"run: {links}; mkdir d; ln -s /etc d/etc; echo own > own.txt")
    host = Path("/etc/passwd").read_bytes()
    assert {entry.name for entry in [each async for each in hf.live.list(session.id)]} >= {
        "etc",
        "own.txt",
    }
    for path in ("etc", "proc", "up", "d/etc", "etc/ssl"):
        with pytest.raises(FileNotFound):
            _ = [each async for each in hf.live.list(session.id, path)]
    for path in ("etc/passwd", "file", "proc/environ", "d/etc/passwd", "up/etc/passwd"):
        with pytest.raises(FileNotFound):
            await hf.live.read(session.id, path)
    packed = b"".join([piece async for piece in hf.files.zip(session.id)])
    with zipfile.ZipFile(io.BytesIO(packed)) as archive:
        assert all(archive.read(name) != host for name in archive.namelist())
        assert archive.read("own.txt") == b"own\n"
        assert archive.read("file") == b""


async def test_a_workspace_on_the_sandboxes_own_disk_cannot_be_made_the_hosts(
    hf: Holdfast, stack: RunningStack
) -> None:
    """With copies, the directory above the workspace is the agent's too."""
    session = await hf.sessions.create(**LIGHT, durability="checkpoint")
    bait = stack.data_dir / "bait"
    bait.mkdir()
    (bait / "bait.txt").write_text("of the host")
    await run(hf, session, "write mine to own.txt")
    swap = f"mv /session/workspace /session/moved && ln -s {bait} /session/workspace"
    events = await run(hf, session, f"run: {swap}; sleep 5; ls /session")
    assert "moved" in output(events), "it was not swapped: the test is blind"
    assert of_type(events, "receipt") == []
    stored = [entry.name async for entry in hf.files.list(session.id)]
    assert "bait.txt" not in stored
    with pytest.raises(NotFound):
        _ = [each async for each in hf.live.list(session.id)]
    assert [path.name for path in bait.iterdir()] == ["bait.txt"]
    assert (bait / "bait.txt").read_text() == "of the host"
    await hf.sessions.delete(session.id)
    assert (bait / "bait.txt").read_text() == "of the host"
