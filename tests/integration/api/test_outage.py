"""PostgreSQL, or the sidecar, away in the middle of a turn: waited out, nothing lost or doubled."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from pathlib import Path

import httpx

from client import Holdfast
from contracts.events import TURN_END_TYPES
from tests.integration.api.test_process import Process, environment, started
from tests.support.api.fault_injector import FaultInjector, FaultyRun, short_run
from tests.support.api.serving import TOKEN, assert_error, bind_port, served
from tests.support.services import SeaweedFS, free_port, postgres, short_directory, until

# How often the api finds the part away before it comes back: the first pauses are over then.
TRIES = 5
WORDS = [str(number) for number in range(20)]


def talking(run: FaultyRun) -> None:
    run.journal.extend(short_run()[:3])


@asynccontextmanager
async def follower(process: Process, sid: str) -> AsyncIterator[asyncio.Task[list[int]]]:
    """A client that follows the session from the start to the turn's end; gives each `seq`."""

    async def follow() -> list[int]:
        seen = []
        async with (
            Holdfast(str(process.http.base_url), TOKEN) as hf,
            aclosing(hf.events(sid)) as events,
        ):
            async for event in events:
                seen.append(event.seq or 0)
                if event.type in TURN_END_TYPES:
                    break
        return seen

    async with asyncio.TaskGroup() as group:
        task = group.create_task(follow())
        yield task


def count_lines(log: Path, text: str) -> int:
    return log.read_text().count(text)


async def refused(process: Process, sid: str) -> None:
    """While it is away, requests are told so; none of them is a 500."""
    async with asyncio.timeout(60):
        while count_lines(process.log, "not listening") < TRIES:
            answers = [
                await process.http.get(f"/sessions/{sid}"),
                await process.http.post(f"/sessions/{sid}/turns", json={"prompt": "x"}),
                await process.http.get("/leaks"),
            ]
            for answer in answers:
                error = assert_error(answer, 503, "database_unavailable")
                assert error["hint"]
                assert error["retryable"] is True
            await asyncio.sleep(0.1)


async def finish(process: Process, run: FaultyRun, sid: str) -> list[str]:
    """The run goes to its end; what the assistant said, as the transcript has it."""
    for line in short_run()[4:]:
        event = json.loads(line)["event"]
        run.say(event.pop("type"), **event)
    turn = f"/sessions/{sid}/turns/{run.request.turn_id}"
    async with asyncio.timeout(60):
        while (await process.http.get(turn)).json()["state"] == "running":
            await asyncio.sleep(0.05)
    told = (await process.http.get(turn)).json()
    assert (told["state"], told["receipt"] is not None) == ("completed", True)
    events = [json.loads(line) for line in await lines(process.http, sid)]
    assert [event["seq"] for event in events] == list(range(1, len(events) + 1))
    return [event["text"] for event in events if event.get("role") == "assistant"]


async def lines(http: httpx.AsyncClient, sid: str) -> list[str]:
    return (await http.get(f"/sessions/{sid}/events")).text.splitlines()


async def test_a_database_that_is_stopped_and_started_again_is_waited_for(
    store_service: SeaweedFS, tmp_path: Path
) -> None:
    injector = FaultInjector()
    injector.plan = talking
    log = tmp_path / "log"
    with short_directory() as directory:
        async with served(injector.app()) as sidecar_url, AsyncExitStack() as stack:
            server = await stack.enter_async_context(postgres(directory))
            env = environment(server.url(), store_service, sidecar_url, free_port())
            async with started(env, log) as process:
                sid = (await process.http.post("/sessions", json={})).json()["id"]
                await process.http.post(f"/sessions/{sid}/turns", json={"prompt": "go"})
                async with follower(process, sid) as following:
                    await until(lambda: injector.runs, "the run starts")
                    (run,) = injector.runs.values()
                    await until(lambda: run.sent == 3, "the stream is followed")
                    await stack.aclose()
                    for word in WORDS:
                        run.say("message", role="assistant", text=word)
                    await refused(process, sid)
                    async with postgres(directory):
                        assert await finish(process, run, sid) == ["done", *WORDS]
                        async with asyncio.timeout(60):
                            seen = await following
                        assert seen == list(range(1, len(seen) + 1))
                        process.child.terminate()
                        await process.exit_code(20)
    assert " ERROR " not in log.read_text()


async def test_a_sidecar_that_is_away_is_waited_for(
    store_service: SeaweedFS, tmp_path: Path
) -> None:
    injector = FaultInjector()
    injector.plan = talking
    # bound all the time, so that the port is still the sidecar's when it comes back
    with bind_port() as kept, short_directory() as directory:
        port = kept.getsockname()[1]
        async with postgres(directory) as server, AsyncExitStack() as stack:
            await stack.enter_async_context(served(injector.app(), port=port))
            url = f"http://127.0.0.1:{port}"
            env = environment(server.url(), store_service, url, free_port())
            async with started(env, tmp_path / "log") as process:
                sid = (await process.http.post("/sessions", json={})).json()["id"]
                await process.http.post(f"/sessions/{sid}/turns", json={"prompt": "go"})
                await until(lambda: injector.runs, "the run starts")
                (run,) = injector.runs.values()
                await until(lambda: run.sent == 3, "the stream is followed")
                await stack.aclose()
                for word in WORDS:
                    run.say("message", role="assistant", text=word)
                assert_error(await process.http.get("/leaks"), 503, "sidecar_unavailable")
                await until(
                    lambda: count_lines(process.log, "the stream broke") >= TRIES,
                    "the api tries to follow again",
                    60,
                )
                shown = await process.http.get(f"/sessions/{sid}")
                assert shown.json()["running_turn"] == str(run.request.turn_id)
                async with served(injector.app(), port=port):
                    assert await finish(process, run, sid) == ["done", *WORDS]
