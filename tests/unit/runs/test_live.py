"""When a harness that a turn left behind still counts as running."""

from __future__ import annotations

import json
from pathlib import Path
from uuid import uuid4

import pytest

from sidecar.harnesses.base import Choice
from sidecar.harnesses.registry import HARNESSES
from sidecar.providers.base import SandboxProcess
from sidecar.runs.live import Adapter, Live, LiveSandboxes, tokens_by_program

NODE = "/opt/node/bin/node"
SDK = "/opt/harness/node_modules/@anthropic-ai/claude-agent-sdk-linux-x64/claude"

SERVER = SandboxProcess(
    "t-server", 2, ("/opt/harness/bin/sandbox-agent", "server", "/opt/harness/bin/sandbox-agent")
)
ADAPTER = SandboxProcess("t-adapter", 5, ("node", "/opt/harness/bin/claude-agent-acp", NODE))
AUTH = SandboxProcess("t-auth", 7, (SDK, "auth", "status", "--json", SDK))
CLAUDE = SandboxProcess("t-claude", 9, (SDK, "--output-format", "stream-json", SDK))
SHELL = SandboxProcess("t-shell", 11, ("/bin/bash", "-c", "sleep 9", "/usr/bin/bash"))

LEFT = [SERVER, ADAPTER, AUTH, CLAUDE, SHELL]


def adapter_of(left: list[SandboxProcess]) -> Adapter:
    return Adapter(
        server_id="claude-1",
        session="s",
        last_event_id=3,
        choice=Choice(),
        epoch=1,
        tokens=tokens_by_program(HARNESSES["claude"], left),
    )


@pytest.mark.parametrize("left", [LEFT, LEFT[::-1]], ids=["auth first", "auth last"])
def test_a_short_process_that_ended_since_the_turn_does_not_make_the_harness_dead(
    left: list[SandboxProcess],
) -> None:
    adapter = adapter_of(left)
    assert adapter.is_among(left)
    assert adapter.is_among([SERVER, ADAPTER, CLAUDE])


@pytest.mark.parametrize("dead", [SERVER, ADAPTER, CLAUDE], ids=["server", "adapter", "claude"])
def test_a_harness_that_lost_a_lasting_process_is_dead(dead: SandboxProcess) -> None:
    now = [process for process in LEFT if process not in (AUTH, dead)]
    assert not adapter_of(LEFT).is_among(now)


def test_a_new_process_does_not_stand_in_for_a_remembered_one() -> None:
    reborn = SandboxProcess("t-other", CLAUDE.pid, CLAUDE.argv)
    assert not adapter_of(LEFT).is_among([SERVER, ADAPTER, reborn])


def test_a_harness_that_left_no_process_is_dead() -> None:
    assert not adapter_of([SHELL]).is_among(LEFT)


def test_no_adapter_is_warm_after_the_workspace_was_mounted_anew() -> None:
    live = Live(uuid4(), "local", "box", adapters={"claude": adapter_of(LEFT)})
    assert not live.without_processes().adapters["claude"].is_among(LEFT)


def test_what_is_known_of_a_sandbox_comes_back_from_disk(tmp_path: Path) -> None:
    live = Live(uuid4(), "local", "box", adapters={"claude": adapter_of(LEFT)})
    LiveSandboxes(tmp_path).put(live)
    assert LiveSandboxes(tmp_path).get(live.session_id) == live


def test_a_record_of_the_release_before_is_not_read(tmp_path: Path) -> None:
    session_id = uuid4()
    known = LiveSandboxes(tmp_path)
    record = {"v": 2, "provider": "local", "sandbox_id": "box", "adapters": {"claude": {}}}
    (tmp_path / "live" / f"{session_id}.json").write_text(json.dumps(record))
    assert known.get(session_id) is None
    assert known.all() == []
