"""A stack that runs a turn, as its operator sees it: metrics and logs."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from api.pump import Limits
from client import Holdfast
from contracts.bodies import Session
from tests.e2e.conftest import run
from tests.support.light_agent.tree import LIGHT
from tests.support.running_stack import RunningStack

pytestmark = [pytest.mark.stack, pytest.mark.harness]

Metrics = dict[tuple[str, ...], float]


@dataclass(frozen=True)
class Watched:
    """A session that has had a turn, and what the metrics were before and after it."""

    session: Session
    before: Metrics
    after: Metrics

    def change(self, *key: str) -> float:
        return self.after[key] - self.before.get(key, 0)

    def change_of_all(self, name: str) -> float:
        return sum(self.change(*key) for key in self.after if key[0] == name)


@pytest.fixture(scope="module")
async def watched(stack: RunningStack) -> AsyncIterator[Watched]:
    async with Holdfast(stack.url, stack.token) as hf:
        before = await metrics(stack)
        made = await hf.sessions.create(**LIGHT)
        events = await run(hf, made, "write hello to hello.txt")
        assert events[-1].type == "turn.completed"
        yield Watched(await hf.sessions.get(made.id), before, await metrics(stack))
        await hf.sessions.delete(made.id)


async def metrics(stack: RunningStack) -> Metrics:
    async with httpx.AsyncClient(trust_env=False, timeout=30) as http:
        bearer = {"Authorization": f"Bearer {stack.token}"}
        answer = await http.get(f"{stack.url}/metrics", headers=bearer)
    return {
        (sample.name, *sorted(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(answer.text)
        for sample in family.samples
    }


def lines(stack: RunningStack, part: str) -> list[dict[str, Any]]:
    """A part's log, without the time before each line."""
    text = (stack.data_dir / "logs" / f"{part}.log").read_text()
    return [json.loads(line.partition(" ")[2]) for line in text.splitlines()]


@pytest.mark.parametrize("part", ["stack", "api", "sidecar", "gateway"])
async def test_every_line_of_ours_is_json(stack: RunningStack, watched: Watched, part: str) -> None:
    found = lines(stack, part)
    assert found
    assert {line["service"] for line in found} == {part}


async def test_a_turn_can_be_followed_from_the_request_through_the_services(
    stack: RunningStack, watched: Watched
) -> None:
    sid = str(watched.session.id)
    (asked,) = [
        line
        for line in lines(stack, "api")
        if line["message"].startswith(f"POST /sessions/{sid}/turns")
    ]
    assert asked["session_id"] == sid
    (began,) = [
        line
        for line in lines(stack, "sidecar")
        if line.get("session_id") == sid and "begins on local" in line["message"]
    ]
    assert watched.session.last_turn is not None
    ids = (began["request_id"], began["session_id"], began["turn_id"])
    assert ids == (asked["request_id"], sid, str(watched.session.last_turn.id))
    assert any(line.get("session_id") == sid for line in lines(stack, "gateway"))


async def test_logs_are_shown_with_the_name_of_their_part(
    stack: RunningStack, watched: Watched
) -> None:
    shown = await stack.command("logs", "sidecar")
    assert "sidecar" in shown
    assert "begins on local" in shown
    for line in (await stack.command("logs", "--json", "-n", "20")).splitlines():
        entry = json.loads(line)
        if entry["part"] in ("stack", "api", "sidecar", "gateway"):
            assert entry["log"] == json.loads(entry["text"])


async def test_metrics_tell_of_the_turn_and_its_sandbox(
    stack: RunningStack, hf: Holdfast, watched: Watched
) -> None:
    async with httpx.AsyncClient(trust_env=False, timeout=30) as http:
        assert (await http.get(f"{stack.url}/metrics")).status_code == 401
    assert watched.change("holdfast_turns", "completed") == 1
    async with asyncio.timeout(6 * Limits().boxes_seconds):  # the metrics may be this old
        while True:  # boxes of other tests may end meanwhile
            boxes = (await hf.sandboxes()).sandboxes
            local = sum(box.provider == "local" for box in boxes)
            warm = sum(not box.in_use for box in boxes)
            found = await metrics(stack)
            told = found["holdfast_sandboxes", "local"], found["holdfast_sandboxes_warm",]
            if told == (local, warm):
                break
            await asyncio.sleep(0.5)
    assert watched.session.id in {box.session_id for box in boxes}
    assert found["holdfast_leaks",] == 0
    up = [watched.after["holdfast_up", part] for part in ("database", "sidecar", "store")]
    assert up == [1, 1, 1]
    assert watched.change_of_all("holdfast_barrier_seconds_count") == 1
    assert watched.change("holdfast_append_seconds_count") >= 1
