"""The real key of a model API: used by every harness's turn, and nowhere in its sandbox."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from client import Holdfast
from contracts.bodies import Session
from sidecar.boxhost.boxes import Boxes
from tests.e2e.conftest import HARNESSES, Keyed, RunningStack, of_type, output, run

pytestmark = pytest.mark.xdist_group("keyed-stack")


@pytest.fixture
async def hf(keyed: Keyed) -> AsyncIterator[Holdfast]:
    async with Holdfast(keyed.stack.url, keyed.stack.token) as client:
        yield client


@pytest.fixture(params=["local", "docker"])
async def session(hf: Holdfast, request: pytest.FixtureRequest) -> AsyncIterator[Session]:
    if request.param == "docker":
        request.getfixturevalue("sandbox_image")
    made = await hf.sessions.create(harness="pi", provider=request.param)
    yield made
    await hf.sessions.delete(made.id)


def looking_for(secret: str) -> str:
    """A command that tells where in its sandbox the secret is: in the environment or the arguments
    of a process, or in a file. It does not find itself. What it leaves out is the host's,
    read-only, and older than any key."""
    pattern = f"[{secret[0]}]{secret[1:].replace('.', '[.]')}"
    return (
        f"grep -alsE '{pattern}' /proc/[0-9]*/environ /proc/[0-9]*/cmdline;"
        f" grep -rlsaE '{pattern}' / --exclude-dir=proc --exclude-dir=sys --exclude-dir=dev"
        " --exclude-dir=usr --exclude-dir=harness; echo looked"
    )


@pytest.mark.parametrize("harness", HARNESSES)
async def test_a_real_key_is_nowhere_in_a_sandbox(
    keyed: Keyed, hf: Holdfast, session: Session, harness: str
) -> None:
    planted = f"planted-{hashlib.sha256(harness.encode()).hexdigest()[:20]}"
    search = "\n".join(f"run: {looking_for(each)}" for each in (keyed.key, planted))
    prompt = f"write {planted} to {planted}.txt\n{search}"
    events = await run(hf, session, prompt, harness=harness)
    assert events[-1].type == "turn.completed", events[-1]
    used = of_type(events, "usage")
    assert used, "no request went out, so nothing is shown"
    assert all(event.model != "scripted-1" for event in used), "the key was not used"
    for_key, for_planted = (event.output for event in of_type(events, "tool.result")[-2:])
    assert "looked" in for_key, output(events)
    assert f"{planted}.txt" in for_planted, "the search does not see the files"
    named = [line for line in for_key.splitlines() if line.startswith("/")]
    assert named == []
    if session.provider == "local":
        seen = from_outside(keyed.stack, session)
        assert b"GATEWAY_TOKEN=" in seen or b"ANTHROPIC_AUTH_TOKEN=" in seen, "it sees nothing"
        assert keyed.key.encode() not in seen
    log = (keyed.stack.data_dir / "logs").glob("*")
    assert not [path for path in log if keyed.key in path.read_text(errors="replace")]
    told = [event.model_dump_json() async for event in hf.events(session.id, follow=False)]
    assert not [line for line in told if keyed.key in line]


def from_outside(stack: RunningStack, session: Session) -> bytes:
    """Environment and arguments of every process of the session's box, as the host sees them."""
    boxes = Boxes(stack.data_dir, stack.data_dir / "unused", Path("unused"))
    [box] = [box for box in boxes.all() if box.labels["session"] == str(session.id)]
    seen = b""
    for process in boxes.processes(box):
        for name in ("environ", "cmdline"):
            with contextlib.suppress(OSError):
                seen += Path(f"/proc/{process.id.pid}/{name}").read_bytes() + b"\0"
    return seen
