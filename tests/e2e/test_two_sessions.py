"""Two sessions on one host: one tries every way to the other, and finds nothing."""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from client import Holdfast
from contracts.bodies import Session
from sidecar.runs.live import LiveSandboxes
from tests.e2e.conftest import RunningStack, output, run
from tests.e2e.test_recovery import boxes_of
from tests.support.light_agent.tree import LIGHT
from tests.support.requirements import missing

IN_BOX = Path(__file__).with_name("in_box")
# What a session sees of itself by the same attempts: else they would be blind.
SEES_ITSELF = {
    *("process list", "environment", "signal", "pidfd", "a process's root", "files anywhere"),
    *("a process's directory", "what files say", "tcp", "abstract socket", "named socket"),
    *("memory", "table of sockets", "sandbox-agent"),
}
WAIT = "for i in $(seq 1000); do [ -f ready.json ] && break; sleep 0.1; done; cat ready.json"


@dataclass(frozen=True)
class Victim:
    """A session that has left its word everywhere, and what is known of it on the host."""

    session: Session
    word: str
    key: int
    port: int
    inner_pid: int
    host_pid: int
    up: frozenset[str]

    @classmethod
    async def start(cls, hf: Holdfast, provider: str) -> Victim:
        session = await hf.sessions.create(**LIGHT, provider=provider)
        await hf.files.put(session.id, "victim.py", (IN_BOX / "victim.py").read_bytes())
        word = f"w{secrets.token_hex(12)}"
        key, port = 1 + secrets.randbelow(1 << 30), 20_000 + secrets.randbelow(10_000)
        begin = f"WORD={word} nohup python3 victim.py {word} {key} {port} >victim.log 2>&1 &"
        told = output(await run(hf, session, f"run: {begin} {WAIT}"))
        assert "{" in told, f"it did not get ready: {told}"
        ready = json.loads(told[told.index("{") : told.rindex("}") + 1])
        found = [pid for pid in host_pids(word) if b"victim.py" in argv(pid)[1]]
        assert len(found) == 1, told
        return cls(session, word, key, port, ready["pid"], found[0], frozenset(ready["up"]))

    def alive(self) -> bool:
        return self.host_pid in host_pids(self.word)


def argv(pid: int) -> list[bytes]:
    try:
        return [*Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0"), b"", b""]
    except OSError:
        return [b"", b""]


def host_pids(word: str) -> list[int]:
    """Processes of this machine that were started with the word."""
    pids = [int(path.name) for path in Path("/proc").glob("[0-9]*")]
    return [pid for pid in pids if word.encode() in argv(pid)]


def host_uid(pid: int) -> int:
    return Path(f"/proc/{pid}").stat().st_uid


@pytest.fixture(params=["local", "docker"])
def provider(request: pytest.FixtureRequest) -> str:
    if request.param == "docker":
        request.getfixturevalue("sandbox_image")
    return str(request.param)


@pytest.fixture
async def victim(hf: Holdfast, provider: str) -> AsyncIterator[Victim]:
    if os.geteuid() != 0:
        missing("root", "only root sees the processes of all boxes")
    made = await Victim.start(hf, provider)
    yield made
    if made.alive():
        await hf.sessions.delete(made.session.id)


@pytest.fixture
async def other(hf: Holdfast, provider: str) -> AsyncIterator[Session]:
    made = await hf.sessions.create(**LIGHT, provider=provider)
    yield made
    await hf.sessions.delete(made.id)


async def host_paths(stack: RunningStack, hf: Holdfast, victim: Victim) -> list[str]:
    """Where the host has what is the victim's: directories and sockets."""
    layout = stack.layout
    session = str(victim.session.id)
    places = [stack.data_dir / "mounts" / session, layout.gateway_sessions / session]
    records = [*stack.data_dir.glob("boxes/*/box.json")]
    for record in records:
        known = json.loads(record.read_text())
        if known["labels"]["session"] == session:
            places += [record.parent, Path(known["agent_socket"])]
    sockets = [path for place in places for path in place.rglob("*") if path.is_socket()]
    places += [stack.data_dir, layout.run, *sockets]
    assert await boxes_of(hf, victim.session)
    assert any(path.is_socket() for path in places)
    return [str(path) for path in places]


async def intrude(
    hf: Holdfast, session: Session, victim: Victim, paths: list[str], pids: list[int]
) -> dict[str, Any]:
    """What a session sees of the victim by each attempt."""
    wanted = {
        "word": victim.word[::-1],
        "session": str(victim.session.id)[::-1],
        "servers": [name[::-1] for name in paths if name.startswith("pi-")],
        "key": victim.key,
        "port": victim.port,
        "pids": pids,
        "paths": [path[::-1] for path in paths if path.startswith("/")],
    }
    await hf.files.put(session.id, "intruder.py", (IN_BOX / "intruder.py").read_bytes())
    await hf.files.put(session.id, "intruder.json", json.dumps(wanted).encode())
    told = output(await run(hf, session, "run: python3 intruder.py"))
    found: dict[str, Any] = json.loads(told[told.index("SEEN ") + 5 : told.rindex("}") + 1])
    return found


async def test_a_session_finds_nothing_of_another_one_on_the_same_host(
    stack: RunningStack, hf: Holdfast, provider: str, victim: Victim, other: Session
) -> None:
    live = LiveSandboxes(stack.data_dir).get(victim.session.id)
    assert live is not None
    servers = [adapter.server_id for adapter in live.adapters.values()]
    known = [*await host_paths(stack, hf, victim), *servers]

    itself = await intrude(hf, victim.session, victim, known, [victim.inner_pid])
    assert {name for name, found in itself.items() if found} >= SEES_ITSELF | victim.up, itself

    found = await intrude(hf, other, victim, known, [victim.host_pid])
    assert found.keys() == itself.keys()
    assert not {name: what for name, what in found.items() if what}
    assert victim.alive()
    assert await stack.stored(victim.session, "hit") is None, "a signal reached it"


async def test_who_gets_the_uid_of_a_session_that_is_gone_finds_nothing_of_it(
    stack: RunningStack, hf: Holdfast, provider: str, victim: Victim
) -> None:
    known = await host_paths(stack, hf, victim)
    uid = host_uid(victim.host_pid)
    await hf.sessions.delete(victim.session.id)
    assert not host_pids(victim.word), "a process of it lives on"
    left = [path for path in known if str(victim.session.id) in path and Path(path).exists()]
    assert not left, "files of it are left on the host"
    heir = await Victim.start(hf, provider)
    try:
        assert host_uid(heir.host_pid) == uid, "it has another uid: nothing was shown"
        found = await intrude(hf, heir.session, victim, known, [victim.host_pid])
        assert not {name: what for name, what in found.items() if what}
    finally:
        await hf.sessions.delete(heir.session.id)


# Every container has the same uid, in namespaces of its own.
@pytest.mark.parametrize("provider", ["local"], indirect=True)
async def test_sessions_that_live_at_the_same_time_have_different_uids(
    hf: Holdfast, provider: str, victim: Victim
) -> None:
    second = await Victim.start(hf, provider)
    try:
        uids = {host_uid(victim.host_pid), host_uid(second.host_pid)}
        assert len(uids) == 2
        assert not uids & {0, os.getuid()}
    finally:
        await hf.sessions.delete(second.session.id)
