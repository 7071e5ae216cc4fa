"""A stack that runs a turn, as its operator sees it: metrics and logs."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from client import Holdfast
from contracts.bodies import Session
from tests.e2e.conftest import run
from tests.support.running_stack import RunningStack, running_stack
from tests.support.services import short_directory

pytestmark = [pytest.mark.stack, pytest.mark.harness]


@pytest.fixture(scope="module")
async def stack(fuse: None) -> AsyncIterator[RunningStack]:
    with short_directory() as home:
        settings = {"HOLDFAST_LOG_FORMAT": "json", "HOLDFAST_RUN_DIR": str(home / "run")}
        async with running_stack(home / "data", settings) as running:
            yield running


@pytest.fixture(scope="module")
async def session(stack: RunningStack) -> Session:
    """A session that has had a turn."""
    async with Holdfast(stack.url, stack.token) as hf:
        made = await hf.sessions.create(harness="pi")
        events = await run(hf, made, "write hello to hello.txt")
        assert events[-1].type == "turn.completed"
        return await hf.sessions.get(made.id)


def lines(stack: RunningStack, part: str) -> list[dict[str, Any]]:
    """A part's log, without the time before each line."""
    text = (stack.data_dir / "logs" / f"{part}.log").read_text()
    return [json.loads(line.partition(" ")[2]) for line in text.splitlines()]


@pytest.mark.parametrize("part", ["stack", "api", "sidecar", "gateway"])
async def test_every_line_of_ours_is_json(stack: RunningStack, session: Session, part: str) -> None:
    found = lines(stack, part)
    assert found
    assert {line["service"] for line in found} == {part}


async def test_a_turn_can_be_followed_from_the_request_through_the_services(
    stack: RunningStack, session: Session
) -> None:
    sid = str(session.id)
    (asked,) = [
        line
        for line in lines(stack, "api")
        if line["message"].startswith(f"POST /sessions/{sid}/turns")
    ]
    assert asked["session_id"] == sid
    (began,) = [line for line in lines(stack, "sidecar") if "begins on local" in line["message"]]
    assert session.last_turn is not None
    ids = (began["request_id"], began["session_id"], began["turn_id"])
    assert ids == (asked["request_id"], sid, str(session.last_turn.id))
    assert any(line.get("session_id") == sid for line in lines(stack, "gateway"))


async def test_logs_are_shown_with_the_name_of_their_part(
    stack: RunningStack, session: Session
) -> None:
    shown = await stack.command("logs", "sidecar")
    assert "sidecar" in shown
    assert "begins on local" in shown
    for line in (await stack.command("logs", "--json", "-n", "20")).splitlines():
        entry = json.loads(line)
        if entry["part"] in ("stack", "api", "sidecar", "gateway"):
            assert entry["log"] == json.loads(entry["text"])


async def test_metrics_tell_of_the_turn_and_its_sandbox(
    stack: RunningStack, session: Session
) -> None:
    async with httpx.AsyncClient(trust_env=False, timeout=30) as http:
        assert (await http.get(f"{stack.url}/metrics")).status_code == 401
        bearer = {"Authorization": f"Bearer {stack.token}"}
        answer = await http.get(f"{stack.url}/metrics", headers=bearer)
    found = {
        (sample.name, *sorted(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(answer.text)
        for sample in family.samples
    }
    assert found["holdfast_turns", "completed"] == 1
    assert found["holdfast_sandboxes", "local"] == 1
    assert found["holdfast_sandboxes_warm",] == 1
    assert found["holdfast_leaks",] == 0
    assert [found["holdfast_up", part] for part in ("database", "sidecar", "store")] == [1, 1, 1]
    assert sum(found[key] for key in found if key[0] == "holdfast_barrier_seconds_count") == 1
    assert found["holdfast_append_seconds_count",] >= 1
