"""What watches over a turn: when it fails, the turn ends and says so."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from contracts.errors import HoldfastError, Unreachable
from sidecar.runs import mount_watch
from sidecar.runs.gateway import Gateway
from sidecar.runs.journal import Journal
from sidecar.runs.live import Live
from sidecar.runs.turn import Turn
from sidecar.workspace import engine
from sidecar.workspace.engine import DurableSandbox
from tests.support.runs import request_of


class Listening:
    """A conversation, as far as it can be told to end."""

    def __init__(self) -> None:
        self.failed: asyncio.Future[HoldfastError] = asyncio.get_running_loop().create_future()

    def fail(self, error: HoldfastError) -> None:
        if not self.failed.done():
            self.failed.set_result(error)


class Parts:
    """Sandboxes without a sandbox."""

    def __init__(self) -> None:
        self.gateway = Gateway(Path("no.sock"))

    async def mount_trouble(self, _: Live) -> str:
        raise OSError("No space left on device")

    def sync_seconds(self, _: Live) -> None: ...

    async def keepalive(self) -> None: ...


async def test_a_watcher_that_fails_ends_the_turn_with_its_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mount_watch, "LOOK_SECONDS", 0.01)
    request = request_of(uuid4())
    parts: Any = Parts()
    turn = Turn(Journal.create(tmp_path, request), parts, parts, None)
    turn._live = Live(request.session_id, "local", "box")
    conversation: Any = Listening()
    async with asyncio.timeout(10), turn._watched(parts, conversation):
        error = await conversation.failed
    assert (error.code, "No space left" in error.message) == ("internal", True)
    await parts.gateway.aclose()


async def test_a_sandbox_that_is_not_thawed_in_time_is_unreachable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Stuck:
        async def freeze(self) -> None: ...

        async def thaw(self) -> None:
            await asyncio.Event().wait()

    monkeypatch.setattr(engine, "THAW_SECONDS", 0.01)
    stuck: Any = Stuck()
    sandbox = DurableSandbox(stuck, stuck, stuck)
    with pytest.raises(Unreachable, match="thawed"):
        async with sandbox.frozen():
            pass
