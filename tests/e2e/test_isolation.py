"""What code in a box can see and reach: nothing but its own session and the gateway."""

from __future__ import annotations

import json
import secrets
from collections.abc import AsyncIterator

import pytest

from client import Holdfast
from contracts.bodies import Session
from tests.e2e.conftest import RunningStack, output, run
from tests.support.light_agent.tree import LIGHT

GATEWAY = 8080  # where every sandbox has it


@pytest.fixture(params=["local", "docker"])
async def session(hf: Holdfast, request: pytest.FixtureRequest) -> AsyncIterator[Session]:
    if request.param == "docker":
        request.getfixturevalue("sandbox_image")
    made = await hf.sessions.create(**LIGHT, provider=request.param)
    yield made
    await hf.sessions.delete(made.id)


async def in_box(hf: Holdfast, session: Session, command: str) -> str:
    return output(await run(hf, session, f"run: {command}"))


@pytest.fixture(scope="module")
def ports(stack: RunningStack) -> dict[str, int]:
    state = stack.state
    assert state is not None
    assert len(state.ports) >= 5, state.ports
    return state.ports


async def test_no_service_of_the_stack_can_be_reached(
    hf: Holdfast, session: Session, ports: dict[str, int]
) -> None:
    numbers = [number for port in ports.values() for number in (port, port + 10_000)]
    probe = 'timeout 5 bash -c "</dev/tcp/127.0.0.1/$n" 2>/dev/null && echo OPEN $n'
    every = " ".join(map(str, [*numbers, GATEWAY]))
    seen = await in_box(hf, session, f"for n in {every}; do {probe}; done; echo probed")
    assert "probed" in seen
    reached = {line for line in seen.splitlines() if line.startswith("OPEN")}
    # were not even the gateway there, the test would be blind
    assert reached == {f"OPEN {GATEWAY}"}, ports


async def test_no_other_sessions_file_process_or_socket_can_be_seen(
    hf: Holdfast, session: Session, stack: RunningStack
) -> None:
    other = await hf.sessions.create(**LIGHT, provider=session.provider)
    word = f"secret-{secrets.token_hex(8)}"
    await run(hf, other, f"write {word} to {word}.txt\nrun: nohup sleep 987 > /dev/null 2>&1 &")
    search = (
        f"grep -rls {word} / --exclude-dir=proc --exclude-dir=sys --exclude-dir=usr 2>/dev/null;"
        f" find / -name '*{word}*' 2>/dev/null; cat /proc/[0-9]*/cmdline | tr '\\0' ' '"
        " | grep -o '[s]leep 987'; find / -type s 2>/dev/null; true"
    )
    seen = await in_box(hf, session, search)
    own = ("/home/agent/.pi/", "/run/holdfast/")  # the prompt; a container's own sockets
    others = [line for line in seen.splitlines() if not line.startswith(own)]
    assert set(" ".join(others).split()) <= {"(no", "output)"}, seen
    assert str(other.id) not in await in_box(hf, session, "cat /proc/self/mountinfo")
    await hf.sessions.delete(other.id)


async def test_no_key_or_secret_of_the_stack_is_in_a_box(
    hf: Holdfast, session: Session, stack: RunningStack
) -> None:
    hidden = [stack.token]
    hidden += list(json.loads((stack.data_dir / "store.json").read_text()).values())
    hidden += [path.read_text().strip() for path in (stack.data_dir / "secrets").iterdir()]
    everything = await in_box(
        hf,
        session,
        "cat /proc/[0-9]*/environ /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' '\\n' | sort -u",
    )
    everything += await in_box(
        hf, session, "find /home /run /tmp /etc -type f | xargs cat | strings"
    )
    assert "GATEWAY_TOKEN=" in everything, "the search does not see the environment"
    for secret in hidden:
        if len(secret) >= 12:
            assert secret not in everything


async def test_the_box_is_no_root_and_cannot_become_it(hf: Holdfast, session: Session) -> None:
    assert "uid=1000" in await in_box(hf, session, "id")
    status = await in_box(hf, session, "grep -E 'CapEff|CapBnd|NoNewPrivs' /proc/self/status")
    assert status.split() == ["CapEff:", "0" * 16, "CapBnd:", "0" * 16, "NoNewPrivs:", "1"]
    escape = "mount -t tmpfs x /tmp 2>&1; touch /usr/x /etc/x /opt/x 2>&1; true"
    refused = await in_box(hf, session, escape)
    assert refused.count("Read-only file system") == 3, refused
