"""A request that outlives the grace of a shutdown gets an answer of ours."""

from __future__ import annotations

import asyncio

import httpx
import uvicorn
from starlette.types import Receive, Scope, Send

from api.metrics import Metrics
from api.middleware import Surround
from tests.support.services import free_port


async def test_an_unanswered_request_is_told_that_the_api_was_stopped() -> None:
    reached = asyncio.Event()

    async def never_answers(scope: Scope, receive: Receive, send: Send) -> None:
        reached.set()
        await asyncio.Event().wait()

    port = free_port()
    server = uvicorn.Server(
        uvicorn.Config(
            Surround(never_answers, Metrics()),
            port=port,
            lifespan="off",
            log_config=None,
            timeout_graceful_shutdown=1,
        )
    )
    async with asyncio.timeout(20), asyncio.TaskGroup() as group:
        group.create_task(server.serve())
        while not server.started:
            await asyncio.sleep(0.01)
        async with httpx.AsyncClient() as http:
            asked = group.create_task(http.get(f"http://127.0.0.1:{port}/sessions"))
            await reached.wait()
            server.should_exit = True
            answer = await asked
    assert answer.status_code == 503
    assert answer.json()["error"]["code"] == "unavailable"
    assert answer.headers["X-Request-Id"] == answer.json()["error"]["request_id"]
