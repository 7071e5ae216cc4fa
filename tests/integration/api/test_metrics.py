"""`GET /metrics`: what it counts, what it leaves out, and that no caller can make it grow."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families
from uuid_utils.compat import uuid7

from contracts.bodies import SandboxBody
from tests.support import names
from tests.support.api.database import NewDatabase
from tests.support.api.fault_injector import FaultInjector, FaultyRun, numbered, planned, short_run
from tests.support.api.serving import QUICK, Api, make_settings, serve_api, served
from tests.support.services import SeaweedFS, until


async def scraped(api: Api) -> dict[str, Metric]:
    answer = await api.http.get("/metrics")
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"].startswith("text/plain")
    return {family.name: family for family in text_string_to_metric_families(answer.text)}


def value(found: dict[str, Metric], family: str, sample: str = "", **labels: str) -> float | None:
    """A sample's value; None when there is none."""
    if family not in found:
        return None
    for each in found[family].samples:
        if each.name == (sample or family) and labels.items() <= each.labels.items():
            return float(each.value)
    return None


# The providers are asked at each scrape.
ASKING = replace(QUICK, boxes_seconds=-1.0)


@pytest.fixture
async def fresh(new_database: NewDatabase, store_service: SeaweedFS) -> AsyncIterator[Api]:
    """An api that has counted nothing yet."""
    injector = FaultInjector()
    async with served(injector.app()) as sidecar_url:
        settings = make_settings(await new_database(), store_service, sidecar_url)
        async with serve_api(settings, injector, ASKING) as running:
            yield running


async def test_metrics_need_the_token(api: Api) -> None:
    answer = await api.http.get("/metrics", headers={"Authorization": "Bearer wrong"})
    assert answer.status_code == 401
    assert b"holdfast_" not in answer.content


async def test_a_turn_is_counted_with_its_events_its_barrier_and_its_tokens(fresh: Api) -> None:
    before = await scraped(fresh)
    assert value(before, "holdfast_turns", state="completed") == 0
    assert value(before, "holdfast_turns_ended", "holdfast_turns_ended_total", state="failed") == 0
    session = await fresh.new_session()
    assert (await fresh.ended(await fresh.start(session.id))).state == "completed"
    found = await scraped(fresh)
    stored = len(await fresh.events(session.id))
    assert value(found, "holdfast_turns", state="completed") == 1
    assert value(found, "holdfast_turns", state="running") == 0
    assert value(found, "holdfast_turns_started", "holdfast_turns_started_total") == 1
    ended = value(found, "holdfast_turns_ended", "holdfast_turns_ended_total", state="completed")
    assert ended == 1
    assert value(found, "holdfast_events_appended", "holdfast_events_appended_total") == stored
    assert (value(found, "holdfast_append_seconds", "holdfast_append_seconds_count") or 0) >= 1
    barriers = value(
        found, "holdfast_barrier_seconds", "holdfast_barrier_seconds_sum", engine="weed"
    )
    assert barriers == pytest.approx(0.1)
    tokens = {
        name: value(found, "holdfast_model_tokens", "holdfast_model_tokens_total", direction=name)
        for name in ("input", "output", "cached")
    }
    assert tokens == {"input": 1, "output": 2, "cached": 0}


async def test_events_that_come_twice_are_counted_once(fresh: Api) -> None:
    session = await fresh.new_session()

    def plan(run: FaultyRun) -> None:
        run.journal.extend(short_run())
        run.faults.append(lambda lines: [*lines[:4], *lines[:4], None])

    with planned(fresh.injector, plan):
        assert (await fresh.ended(await fresh.start(session.id))).state == "completed"
    found = await scraped(fresh)
    stored = len(await fresh.events(session.id))
    assert value(found, "holdfast_events_appended", "holdfast_events_appended_total") == stored


async def test_a_harness_cannot_make_a_counter_fall(fresh: Api) -> None:
    session = await fresh.new_session()
    usage = ("usage", {"input_tokens": -5, "output_tokens": 3})
    failed = (names.RECEIPT_FAILED, {"engine": "made up", "reason": "x"})
    end = (names.TURN_COMPLETED, {"stop_reason": "end_turn"})
    with planned(fresh.injector, lambda run: run.journal.extend(numbered(usage, failed, end))):
        assert (await fresh.ended(await fresh.start(session.id))).state == "completed"
    found = await scraped(fresh)
    name = "holdfast_model_tokens"
    assert value(found, name, f"{name}_total", direction="input") == 0
    assert value(found, name, f"{name}_total", direction="output") == 3
    name = "holdfast_receipts_failed"
    assert value(found, name, f"{name}_total", engine="other") == 1


async def test_followers_are_counted_while_they_follow(fresh: Api) -> None:
    session = await fresh.new_session()
    path = f"/sessions/{session.id}/events"
    async with fresh.http.stream("GET", path, params={"follow": True}) as response:
        lines = response.aiter_lines()
        assert await anext(lines) == ""
        assert value(await scraped(fresh), "holdfast_followers") == 1
    async with asyncio.timeout(10):
        while value(await scraped(fresh), "holdfast_followers") != 0:
            await asyncio.sleep(0.02)


async def test_sandboxes_are_told_by_provider_and_warmth(fresh: Api) -> None:
    later = datetime.now(UTC) + timedelta(minutes=5)
    fresh.injector.strays = [
        SandboxBody(
            session_id=uuid7(), sandbox_id="a", provider="local", state="running", warm_until=later
        ),
        SandboxBody(session_id=uuid7(), sandbox_id="b", provider="local", state="running"),
        SandboxBody(session_id=uuid7(), sandbox_id="c", provider="local", state="gone"),
    ]
    found = await scraped(fresh)
    assert value(found, "holdfast_sandboxes", provider="local") == 2
    assert value(found, "holdfast_sandboxes", provider="e2b") is None, "it cannot be asked"
    assert value(found, "holdfast_sandboxes_warm") == 1
    assert value(found, "holdfast_leaks") == 2, "no entry of the ledger knows them"


async def test_what_cannot_be_known_is_left_out(fresh: Api) -> None:
    assert value(await scraped(fresh), "holdfast_up", part="sidecar") == 1
    settings = fresh.settings.model_copy(update={"sidecar_url": "http://127.0.0.1:1"})
    async with serve_api(settings, fresh.injector) as alone:
        found = await scraped(alone)
    assert value(found, "holdfast_up", part="sidecar") == 0
    assert value(found, "holdfast_up", part="database") == 1
    assert value(found, "holdfast_up", part="store") == 1
    assert value(found, "holdfast_turns", state="completed") is not None
    for family in ("holdfast_sandboxes", "holdfast_sandboxes_warm", "holdfast_leaks"):
        assert family not in found


async def test_no_caller_can_make_the_labels_grow(fresh: Api) -> None:
    sids = [(await fresh.new_session()).id for _ in range(3)]
    for sid in sids:
        await fresh.http.get(f"/sessions/{sid}")
        await fresh.http.get(f"/sessions/{uuid7()}/files/{uuid7()}")
        await fresh.http.get(f"/nothing/{uuid7()}")
        await fresh.http.get(f"/static/{uuid7()}.js")
        await fresh.http.request(f"M{sid.hex[-8:]}", "/sessions")
        await fresh.http.get(f"/{uuid7()}", headers={"Authorization": "Bearer wrong"})
    found = await scraped(fresh)
    samples = found["holdfast_http_requests"].samples
    labels = {(each.labels["method"], each.labels["route"]) for each in samples}
    assert ("GET", "/sessions/{sid}") in labels
    assert {route for _, route in labels if "{" not in route} <= {
        *("/sessions", "/static", "/metrics", "none")
    }
    assert {method for method, _ in labels} == {"GET", "POST", "other"}
    count = value(
        found,
        "holdfast_http_requests",
        "holdfast_http_requests_total",
        route="/sessions/{sid}",
        status="200",
    )
    assert count == 3


async def test_providers_are_not_asked_at_every_scrape(fresh: Api) -> None:
    seldom = replace(QUICK, boxes_seconds=3600.0)
    async with serve_api(fresh.settings, fresh.injector, seldom) as api:
        await scraped(api)
        asked = api.injector.listings
        await scraped(api)
    assert api.injector.listings == asked > 0


async def test_two_apps_in_one_process_count_apart(fresh: Api) -> None:
    session = await fresh.new_session()
    async with serve_api(fresh.settings, fresh.injector) as other:
        turn = await fresh.start(session.id)
        await until(lambda: turn.id in fresh.injector.runs, "the run starts")
        await fresh.ended(turn)
        one, two = await scraped(fresh), await scraped(other)
    started = "holdfast_turns_started"
    assert value(one, started, f"{started}_total") == 1
    assert value(two, started, f"{started}_total") == 0
    # what comes from the database is the same everywhere
    assert value(one, "holdfast_turns", state="completed") == 1
    assert value(two, "holdfast_turns", state="completed") == 1
