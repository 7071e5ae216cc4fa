"""The real embedded stack, started by the real command, once for all tests of this folder."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aioboto3
import pytest

from client import Holdfast
from contracts.bodies import Session, Turn
from contracts.errors import HoldfastError
from contracts.events import Event
from stack.settings import load_settings
from tests.services import free_port, short_directory

HOLDFAST = str(Path(sys.executable).with_name("holdfast"))
HARNESSES = ("claude", "codex", "opencode", "pi")


@dataclass(frozen=True)
class RunningStack:
    data_dir: Path
    env: dict[str, str]

    @property
    def url(self) -> str:
        return str(json.loads((self.data_dir / "api.json").read_text())["url"])

    @property
    def token(self) -> str:
        return (self.data_dir / "token").read_text().strip()

    async def command(self, *args: str, check: bool = True) -> str:
        process = await asyncio.create_subprocess_exec(
            HOLDFAST,
            *args,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=self.env,
        )
        output, _ = await process.communicate()
        text = output.decode()
        assert not check or process.returncode == 0, text
        return text

    async def pid_of(self, part: str) -> int:
        parts = json.loads(await self.command("status", "--json"))["parts"]
        return next(int(found["pid"]) for found in parts if found["name"] == part)

    async def stored(self, session: Session, path: str) -> bytes | None:
        """An object as an S3 client of its own sees it."""
        access = json.loads((self.data_dir / "store.json").read_text())
        async with aioboto3.Session().client(
            "s3",
            endpoint_url=access["endpoint"],
            aws_access_key_id=access["access_key"],
            aws_secret_access_key=access["secret_key"],
            region_name="us-east-1",
        ) as s3:
            try:
                answer = await s3.get_object(Bucket=access["bucket"], Key=f"{session.id}/{path}")
            except s3.exceptions.NoSuchKey:
                return None
            return await answer["Body"].read()


@pytest.fixture(scope="session")
async def stack(fuse: None) -> AsyncIterator[RunningStack]:
    settings = load_settings()
    if settings.anthropic_api_key or settings.openai_api_key:
        pytest.fail("take the keys out of .env and the environment: tests never call a real model")
    with short_directory() as directory:
        data_dir = directory / "data"
        env = {
            **os.environ,
            "HOLDFAST_DATA_DIR": str(data_dir),
            "HOLDFAST_API_PORT": str(free_port()),
            "HOLDFAST_OFFLINE": "1",
        }
        running = RunningStack(data_dir, env)
        await running.command("up", "--detach")
        try:
            yield running
        finally:
            await running.command("down")
        left = Path("/proc/self/mountinfo").read_text()
        assert str(data_dir) not in left, "a mount was left behind"


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


async def wait_for_event(hf: Holdfast, turn: Turn, kind: str) -> Any:
    async with asyncio.timeout(60):
        async for event in hf.events(turn.session_id, after=turn.first_seq - 1):
            if event.turn_id == turn.id and event.type == kind:
                return event
    raise AssertionError(f"the stream ended without {kind}")
