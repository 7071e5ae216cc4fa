"""`python -m api` as a process of its own: started, stopped, killed, started again."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from api.db.migrate import load
from api.settings import Settings
from tests.support import names
from tests.support.api import rows
from tests.support.api.database import NewDatabase
from tests.support.api.fault_injector import SECRET, FaultInjector, FaultyRun, short_run
from tests.support.api.serving import TOKEN, served
from tests.support.names import env_name
from tests.support.services import SeaweedFS, free_port, until


@dataclass
class Process:
    child: subprocess.Popen[bytes]
    http: httpx.AsyncClient
    log: Path

    async def exit_code(self, within: float) -> int:
        return await asyncio.to_thread(self.child.wait, within)


def environment(database_url: str, store: SeaweedFS, sidecar_url: str, port: int) -> dict[str, str]:
    return {
        "PATH": os.environ["PATH"],
        env_name(Settings, "api_port"): str(port),
        env_name(Settings, "api_token"): TOKEN,
        env_name(Settings, "database_url"): database_url,
        env_name(Settings, "sidecar_url"): sidecar_url,
        env_name(Settings, "sidecar_secret"): SECRET,
        env_name(Settings, "s3_endpoint"): store.endpoint,
        env_name(Settings, "s3_access_key"): store.access_key,
        env_name(Settings, "s3_secret_key"): store.secret_key,
        "HOLDFAST_LOG_LEVEL": "debug",
    }


def spawn(env: dict[str, str], log: Path) -> subprocess.Popen[bytes]:
    with log.open("ab") as out:
        return subprocess.Popen(
            [sys.executable, "-m", "api"], env=env, stdout=out, stderr=out, start_new_session=True
        )


@asynccontextmanager
async def started(env: dict[str, str], log: Path) -> AsyncIterator[Process]:
    child = spawn(env, log)
    url = f"http://127.0.0.1:{env[env_name(Settings, 'api_port')]}"
    try:
        async with httpx.AsyncClient(
            base_url=url, headers={"Authorization": f"Bearer {TOKEN}"}, timeout=30, trust_env=False
        ) as http:
            deadline = time.monotonic() + 60
            while True:
                assert child.poll() is None, log.read_text()[-3000:]
                assert time.monotonic() < deadline, log.read_text()[-3000:]
                try:
                    if (await http.get("/readyz")).status_code == 200:
                        break
                except httpx.TransportError:
                    pass
                await asyncio.sleep(0.05)
            yield Process(child, http, log)
    finally:
        if child.poll() is None:
            child.kill()
        child.wait(10)


async def test_sigterm_ends_it_at_once_with_a_follower_and_logs_no_secret(
    new_database: NewDatabase, store_service: SeaweedFS, tmp_path: Path
) -> None:
    injector = FaultInjector()
    async with served(injector.app()) as sidecar_url:
        env = environment(await new_database(), store_service, sidecar_url, free_port())
        async with started(env, tmp_path / "log") as process:
            assert (await process.http.get("/", params={"token": TOKEN})).status_code == 303
            sid = (await process.http.post("/sessions", json={})).json()["id"]
            async with process.http.stream(
                "GET", f"/sessions/{sid}/events", params={"follow": True}
            ) as response:
                lines = response.aiter_lines()
                assert await anext(lines) == ""
                process.child.send_signal(signal.SIGTERM)
                assert [line async for line in lines if line] == []
            # uvicorn shuts down first and then dies of the signal that it got
            assert await process.exit_code(5) == -signal.SIGTERM
    log = (tmp_path / "log").read_text()
    assert f"GET /sessions/{sid}/events 200" in log
    for secret in (TOKEN, SECRET, store_service.secret_key):
        assert secret not in log
    assert "Traceback" not in log
    assert "Application shutdown complete" in log


async def test_a_turn_outlives_a_kill_of_the_api(
    new_database: NewDatabase, store_service: SeaweedFS, tmp_path: Path
) -> None:
    injector = FaultInjector()
    injector.plan = lambda run: run.journal.extend(short_run()[:3])
    async with served(injector.app()) as sidecar_url:
        env = environment(await new_database(), store_service, sidecar_url, free_port())
        async with started(env, tmp_path / "log") as process:
            sid = (await process.http.post("/sessions", json={})).json()["id"]
            answer = await process.http.post(f"/sessions/{sid}/turns", json={"prompt": "go"})
            turn = answer.json()["id"]
            await until(lambda: injector.runs, "the run starts")
            process.child.send_signal(signal.SIGKILL)
            await process.exit_code(5)
        (run,) = injector.runs.values()
        run.journal.extend(short_run()[3:])
        async with started(env, tmp_path / "log") as process:
            async with asyncio.timeout(20):
                while True:
                    now = (await process.http.get(f"/sessions/{sid}/turns/{turn}")).json()
                    if now["state"] != "running":
                        break
                    await asyncio.sleep(0.05)
            assert now["state"] == "completed"
            text = (await process.http.get(f"/sessions/{sid}/events")).text
    events = [json.loads(line) for line in text.splitlines()]
    assert [event["seq"] for event in events] == list(range(1, 9))
    assert [event["type"] for event in events][-1] == names.TURN_COMPLETED


@pytest.mark.parametrize(
    "missing", [env_name(Settings, "api_token"), env_name(Settings, "database_url")]
)
async def test_a_missing_setting_is_named(missing: str, store_service: SeaweedFS) -> None:
    env = environment("postgresql://nobody@/x", store_service, "http://127.0.0.1:1", free_port())
    del env[missing]
    done = await asyncio.to_thread(
        subprocess.run, [sys.executable, "-m", "api"], env=env, capture_output=True, timeout=60
    )
    assert done.returncode == 2
    assert missing in done.stderr.decode()
    assert "Traceback" not in done.stderr.decode()


async def test_json_logs_carry_a_turn_from_the_request_that_started_it(
    new_database: NewDatabase, store_service: SeaweedFS, tmp_path: Path
) -> None:
    injector = FaultInjector()

    def breaks_once(run: FaultyRun) -> None:
        run.faults.append(lambda _: [None])
        run.journal.extend(short_run())

    injector.plan = breaks_once
    log = tmp_path / "log"
    async with served(injector.app()) as sidecar_url:
        env = environment(await new_database(), store_service, sidecar_url, free_port())
        async with started({**env, "HOLDFAST_LOG_FORMAT": "json"}, log) as process:
            sid = (await process.http.post("/sessions", json={})).json()["id"]
            answer = await process.http.post(f"/sessions/{sid}/turns", json={"prompt": "go"})
            turn, request = answer.json()["id"], answer.headers["X-Request-Id"]
            async with asyncio.timeout(20):
                path = f"/sessions/{sid}/turns/{turn}"
                while (await process.http.get(path)).json()["state"] != "completed":
                    await asyncio.sleep(0.05)
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert {line["service"] for line in lines} == {"api"}
    assert any(line["logger"].startswith("uvicorn") for line in lines)
    (broke,) = [line for line in lines if "the stream broke" in line["message"]]
    ids = (broke["request_id"], broke["session_id"], broke["turn_id"])
    assert ids == (request, sid, turn)
    (asked,) = [line for line in lines if line["message"].startswith(f"POST /sessions/{sid}/turns")]
    assert (asked["request_id"], asked["session_id"]) == (request, sid)
    # the sidecar was told too, so that its lines can be found by the same id
    assert {headers.get("x-request-id") for headers in injector.started_with} == {request}


async def test_a_database_of_a_newer_version_is_refused_in_words(
    new_database: NewDatabase, store_service: SeaweedFS, tmp_path: Path
) -> None:
    url = await new_database()
    newer = len(load()) + 1
    async with rows.connect(url) as conn:
        await rows.add_migration(conn, newer)
    env = environment(url, store_service, "http://127.0.0.1:1", free_port())
    done = await asyncio.to_thread(
        subprocess.run, [sys.executable, "-m", "api"], env=env, capture_output=True, timeout=60
    )
    assert done.returncode not in (0, None)
    said = done.stderr.decode()
    assert f"its schema is {newer}, this version knows {newer - 1}" in said
    assert "run the newer version, or restore the backup" in said
    assert "Traceback" not in said
