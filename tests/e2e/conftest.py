"""The real embedded stack, started by the real command, once for all tests of this folder.

It has the four harnesses and the light agent. A test that is about no harness takes the light one:
the same stack, sandbox and sandbox-agent, for a tenth of the price.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Collection, Iterator
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import pytest

from client import Holdfast
from contracts.bodies import Session, Turn
from contracts.errors import HoldfastError
from contracts.events import TURN_END_TYPES, Event
from contracts.session_tokens import session_token
from sidecar.harnesses.base import SCRIPTED_MODEL
from sidecar.providers.base import WORKSPACE
from tests.support.gateway import gateway
from tests.support.light_agent.tree import LIGHT, light_agent
from tests.support.ports import free_port
from tests.support.running_stack import RunningStack as RunningStack
from tests.support.running_stack import running_stack
from tests.support.services import short_directory

QUOTA = 2_000_000  # bytes of a session on the keyed stack
HARNESSES = ("claude", "codex", "opencode", "pi")
# For a turn of a session of the light agent, whose model another harness does not know.
CODEX = {"harness": "codex", "model": SCRIPTED_MODEL}
# A command that ends when the test says so. It stands outside of the workspace, which may be
# mounted anew meanwhile, and leaves no file behind that a receipt would count.
UNTIL_LET_GO = (
    f"cd /; until test -e {WORKSPACE}/go; do sleep 0.05; done; rm {WORKSPACE}/go; cd {WORKSPACE}"
)


def with_each_harness(case: Callable[..., Any]) -> Callable[..., Any]:
    """A case for every harness, in the session that all such cases of a harness share."""
    pytest.mark.parametrize("harness_session", HARNESSES, indirect=True)(case)
    pytest.mark.xdist_group("harness-sessions")(case)
    return case


@pytest.fixture(scope="package")
def light_settings(request: pytest.FixtureRequest) -> Iterator[dict[str, str]]:
    """For a stack that has the light agent too, in containers where there is an engine."""
    try:
        image = request.getfixturevalue("sandbox_image")
    except pytest.skip.Exception:  # what needs it asks for it, and is skipped then
        image = None
    with light_agent(image) as settings:
        yield settings


@pytest.fixture(scope="package")
async def stack(fuse: None, light_settings: dict[str, str]) -> AsyncIterator[RunningStack]:
    settings = {
        **light_settings,
        # Nothing is on the allow-list: harnesses ask for hosts of their own, some of them listed.
        "HOLDFAST_EGRESS_ALLOW": ",",
        "HOLDFAST_LOG_FORMAT": "json",
    }
    with short_directory() as directory:
        async with running_stack(directory / "data", settings) as running:
            yield running


@dataclass(frozen=True)
class Keyed:
    """A stack that has a key for its models."""

    stack: RunningStack
    key: str


@pytest.fixture(scope="package")
async def keyed(fuse: None, light_settings: dict[str, str]) -> AsyncIterator[Keyed]:
    """A stack that has keys of both families, and tight limits. The keys' vendor is a second
    gateway on loopback, whose scripted model knows the key for the token of a session of its own.

    The files that use it have the same xdist group, so that one worker starts it once.
    """
    port, account, secret = free_port(), uuid4(), "of-the-stand-in-vendor"
    key = session_token(secret.encode(), str(account))
    remote = {"HOLDFAST_GATEWAY_PORT": str(port), "HOLDFAST_GATEWAY_SECRET": secret}
    settings = {
        **light_settings,
        "ANTHROPIC_API_KEY": key,
        "ANTHROPIC_BASE_URL": f"http://127.0.0.1:{port}",
        "OPENAI_API_KEY": key,
        "OPENAI_BASE_URL": f"http://127.0.0.1:{port}",
        "HOLDFAST_SESSION_BYTES": str(QUOTA),
        "HOLDFAST_CHECKPOINT_SECONDS": "2",
    }
    async with gateway(**remote) as vendor:
        await vendor.open(account)
        with short_directory() as directory:
            async with running_stack(directory / "data", settings) as stack:
                yield Keyed(stack, key)


@pytest.fixture
async def hf(stack: RunningStack) -> AsyncIterator[Holdfast]:
    async with Holdfast(stack.url, stack.token) as client:
        yield client


@pytest.fixture
async def session(hf: Holdfast) -> AsyncIterator[Session]:
    """A session of the light agent."""
    made = await hf.sessions.create(**LIGHT)
    yield made
    with contextlib.suppress(HoldfastError):  # the test may have deleted it
        await hf.sessions.delete(made.id)


@pytest.fixture
async def pi_session(hf: Holdfast) -> AsyncIterator[Session]:
    """A session of the real pi, until a turn names another harness."""
    made = await hf.sessions.create(harness="pi")
    yield made
    with contextlib.suppress(HoldfastError):
        await hf.sessions.delete(made.id)


@pytest.fixture(scope="package")
async def harness_session(
    stack: RunningStack, request: pytest.FixtureRequest
) -> AsyncIterator[Session]:
    """A session of a real harness, which takes long to start: the cases of all files find it warm.

    pytest runs all of a harness before the next one. A case has files and words of its own, and
    leaves the session as it was; only the last one, in test_turns.py, deletes it.
    """
    async with Holdfast(stack.url, stack.token) as hf:
        made = await hf.sessions.create(harness=request.param)
        yield made
        with contextlib.suppress(HoldfastError):
            await hf.sessions.delete(made.id)


async def run(hf: Holdfast, session: Session, prompt: str, **choices: Any) -> list[Event]:
    """One whole turn's events."""
    return [event async for event in hf.turns.run(session.id, prompt, **choices)]


def of_type(events: list[Event], kind: str) -> list[Any]:
    return [event for event in events if event.type == kind]


def output(events: list[Event]) -> str:
    return "\n".join(event.output for event in of_type(events, "tool.result"))


async def let_go(hf: Holdfast, session: Session) -> None:
    """End a command that waits by UNTIL_LET_GO."""
    await hf.files.put(session.id, "go", b"")


async def wait_for_end(hf: Holdfast, turn: Turn) -> Any:
    """The event that a turn ended with."""
    return await _wait(hf, turn, TURN_END_TYPES)


async def wait_for_event(hf: Holdfast, turn: Turn, kind: str) -> Any:
    """The turn's first event of this kind; fails at once when the turn ends without it."""
    found = await _wait(hf, turn, {kind, *TURN_END_TYPES})
    assert found.type == kind, f"no {kind} before {found!r}"
    return found


async def _wait(hf: Holdfast, turn: Turn, kinds: Collection[str]) -> Any:
    # a cold opencode on a loaded machine needs most of a minute
    async with asyncio.timeout(150):
        async for event in hf.events(turn.session_id, after=turn.first_seq - 1):
            if event.turn_id == turn.id and event.type in kinds:
                return event
    raise AssertionError("the stream ended before the turn")
