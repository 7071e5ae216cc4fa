"""The real embedded stack, started by the real command, once for all tests of this folder."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest

from client import Holdfast
from contracts.bodies import Session, Turn
from contracts.errors import HoldfastError
from contracts.events import TURN_END_TYPES, Event
from tests.support.running_stack import RunningStack as RunningStack
from tests.support.running_stack import running_stack
from tests.support.services import short_directory

HARNESSES = ("claude", "codex", "opencode", "pi")


@pytest.fixture(scope="session")
async def stack(fuse: None) -> AsyncIterator[RunningStack]:
    with short_directory() as directory:
        async with running_stack(directory / "data") as running:
            yield running


@pytest.fixture
async def hf(stack: RunningStack) -> AsyncIterator[Holdfast]:
    async with Holdfast(stack.url, stack.token) as client:
        yield client


@pytest.fixture
async def session(hf: Holdfast) -> AsyncIterator[Session]:
    made = await hf.sessions.create(harness="pi")
    yield made
    with contextlib.suppress(HoldfastError):  # the test may have deleted it
        await hf.sessions.delete(made.id)


async def run(hf: Holdfast, session: Session, prompt: str, **choices: Any) -> list[Event]:
    """One whole turn's events."""
    return [event async for event in hf.turns.run(session.id, prompt, **choices)]


def of_type(events: list[Event], kind: str) -> list[Any]:
    return [event for event in events if event.type == kind]


def output(events: list[Event]) -> str:
    return "\n".join(event.output for event in of_type(events, "tool.result"))


async def wait_for_end(hf: Holdfast, turn: Turn) -> Any:
    """The event that a turn ended with."""
    async with asyncio.timeout(150):
        async for event in hf.events(turn.session_id, after=turn.first_seq - 1):
            if event.turn_id == turn.id and event.type in TURN_END_TYPES:
                return event
    raise AssertionError("the stream ended before the turn")


async def wait_for_event(hf: Holdfast, turn: Turn, kind: str, within: float = 60) -> Any:
    async with asyncio.timeout(within):
        async for event in hf.events(turn.session_id, after=turn.first_seq - 1):
            if event.turn_id == turn.id and event.type == kind:
                return event
    raise AssertionError(f"the stream ended without {kind}")
