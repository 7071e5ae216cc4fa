"""Runs of the matrix: a process of its own that is looked after, its news kept.

The fault injector runs nothing, so a cell that is tried fails at its first promise.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from pathlib import Path
from uuid import UUID

import pytest
from uuid_utils.compat import uuid7

from api.settings import Settings
from contracts.bodies import MatrixRun
from tests.support.api.database import NewDatabase
from tests.support.api.fault_injector import FaultInjector
from tests.support.api.serving import Api, assert_error, make_settings, serve_api, served
from tests.support.services import SeaweedFS, free_port, until


@pytest.fixture
async def place(
    new_database: NewDatabase, store_service: SeaweedFS
) -> AsyncIterator[tuple[Settings, FaultInjector]]:
    injector = FaultInjector()
    async with served(injector.app()) as url:
        database = await new_database()
        settings = make_settings(database, store_service, url, api_port=free_port())
        yield settings, injector


@pytest.fixture
async def api(place: tuple[Settings, FaultInjector]) -> AsyncIterator[Api]:
    async with serve_api(*place, at_port=True) as running:
        yield running


async def started(api: Api, **body: object) -> MatrixRun:
    answer = await api.http.post("/matrix/runs", json=body)
    assert answer.status_code == 202, answer.text
    return MatrixRun.model_validate_json(answer.content)


async def now(api: Api, run: MatrixRun) -> MatrixRun:
    answer = await api.http.get(f"/matrix/runs/{run.id}")
    assert answer.status_code == 200, answer.text
    return MatrixRun.model_validate_json(answer.content)


async def ended(api: Api, run: MatrixRun) -> MatrixRun:
    async with asyncio.timeout(60):
        while (run := await now(api, run)).state == "running":
            await asyncio.sleep(0.05)
    return run


def processes() -> list[int]:
    """The matrix's processes that the api, which runs here, has started."""
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdigit() and b"client.matrix_lines" in (entry / "cmdline").read_bytes():
                parent = (entry / "stat").read_text().rpartition(")")[2].split()[1]
                if int(parent) == os.getpid():
                    found.append(int(entry.name))
    return found


async def test_a_run_has_a_verdict_and_a_reason_for_every_cell(api: Api) -> None:
    run = await started(api)
    assert (run.harnesses, run.providers) == (["claude", "pi"], ["local", "e2b"])
    assert run.cells is not None
    assert {cell.state for cell in run.cells} <= {"waiting", "running"}
    run = await ended(api, run)
    assert (run.state, run.passed, run.failed, run.skipped) == ("completed", 0, 2, 2)
    assert run.cells is not None
    told = {(cell.harness, cell.provider): cell for cell in run.cells}
    assert list(told) == [("claude", "local"), ("pi", "local"), ("claude", "e2b"), ("pi", "e2b")]
    failed = told["pi", "local"]
    assert failed.state == "failed"
    assert failed.reason.startswith("write: ")
    assert [step.name for step in failed.steps] == ["write"]
    assert failed.took is not None
    assert failed.session_id is not None
    assert (told["pi", "e2b"].state, told["pi", "e2b"].reason) == (
        "skipped",
        "E2B_API_KEY is not set.",
    )
    listed = (await api.http.get("/matrix/runs")).json()["runs"]
    assert [(each["id"], each["failed"], each["cells"]) for each in listed] == [
        (str(run.id), 2, None)
    ]
    sessions = (await api.http.get("/sessions", params={"archived": "any"})).json()["sessions"]
    assert sessions == [], "a trial's session was left"


async def test_only_one_runs_at_a_time_and_it_can_be_cancelled(api: Api) -> None:
    api.injector.plan = lambda run: None  # a turn that never ends
    run = await started(api, harnesses=["pi"], providers=["local"])
    assert_error(await api.http.post("/matrix/runs", json={}), 409, "conflict")
    await until(lambda: api.injector.runs, "its turn is started", 30)
    answer = await api.http.post(f"/matrix/runs/{run.id}/cancel")
    cancelled = MatrixRun.model_validate_json(answer.content)
    assert cancelled.state == "cancelled"
    assert cancelled.cells is not None
    assert [cell.state for cell in cancelled.cells] == ["skipped"]
    await until(lambda: not processes(), "its process is gone", 60)
    assert (await now(api, run)).state == "cancelled"
    assert (await api.http.get("/sessions")).json()["sessions"] == []
    again = await started(api, harnesses=["claude"], providers=["e2b"])
    assert (await ended(api, again)).skipped == 1


async def test_a_run_ends_with_its_api_and_says_so(
    place: tuple[Settings, FaultInjector],
) -> None:
    settings, injector = place
    injector.plan = lambda run: None
    async with serve_api(settings, injector, at_port=True) as first:
        run = await started(first, harnesses=["pi"], providers=["local"])
        await until(lambda: injector.runs, "its turn is started", 30)
    await until(lambda: not processes(), "its process is gone", 30)
    async with serve_api(settings, injector, at_port=True) as second:
        told = await now(second, run)
        assert (told.state, told.error) == ("interrupted", "the api was stopped")


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        ({"harnesses": ["emacs"]}, 400, "unknown_harness"),
        ({"providers": ["moon"]}, 400, "unknown_provider"),
        ({"harnesses": []}, 400, "invalid_input"),
        ({"engine": "tape"}, 400, "invalid_input"),
    ],
)
async def test_what_is_not_there_is_not_run(
    api: Api, body: dict[str, object], status: int, code: str
) -> None:
    assert_error(await api.http.post("/matrix/runs", json=body), status, code)
    assert (await api.http.get("/matrix/runs")).json() == {"runs": []}


async def test_an_unknown_run_is_told(api: Api) -> None:
    unknown: UUID = uuid7()
    answer = await api.http.get(f"/matrix/runs/{unknown}")
    assert_error(answer, 404, "matrix_run_not_found")
