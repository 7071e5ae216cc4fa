"""The ledger against real boxes: one that something answers for is no leak; none is left."""

from __future__ import annotations

import asyncio
from pathlib import Path

import asyncpg
import httpx
import pytest

from api.pump import Limits
from api.settings import Settings
from client import Holdfast
from contracts.bodies import Destroyed, Session
from tests.e2e.conftest import (
    UNTIL_LET_GO,
    RunningStack,
    let_go,
    of_type,
    run,
    wait_for_event,
)


@pytest.fixture(autouse=True)
async def healthy(hf: Holdfast) -> None:
    assert (await hf.leaks()).leaks == []


async def api_settings(stack: RunningStack) -> Settings:
    """As the running api has them."""
    environment = Path(f"/proc/{stack.pid_of('api')}/environ")
    pairs = [line.partition("=") for line in environment.read_text().split("\0")]
    named = {name.removeprefix("HOLDFAST_").lower(): value for name, _, value in pairs}
    fields = Settings.model_fields.keys()
    return Settings.model_validate({key: value for key, value in named.items() if key in fields})


async def close_entry(stack: RunningStack, session: Session) -> None:
    """Make the ledger forget that the session's box lives."""
    settings = await api_settings(stack)
    conn = await asyncpg.connect(settings.database_url.get_secret_value())
    try:
        await conn.execute(
            "UPDATE sandboxes SET state = 'gone', ended_at = now() WHERE session_id = $1",
            session.id,
        )
    finally:
        await conn.close()


async def destroy(stack: RunningStack, provider: str, sandbox_id: str) -> httpx.Response:
    settings = await api_settings(stack)
    secret = settings.sidecar_secret.get_secret_value()
    socket = settings.sidecar_url.removeprefix("unix:")
    async with httpx.AsyncClient(
        transport=httpx.AsyncHTTPTransport(uds=socket),
        base_url="http://sidecar",
        headers={"Authorization": f"Bearer {secret}"},
        timeout=60,
    ) as http:
        return await http.delete(f"/sandboxes/{provider}/{sandbox_id}")


async def boxes_of(hf: Holdfast, session: Session) -> list[str]:
    found = (await hf.sandboxes()).sandboxes
    return [box.sandbox_id for box in found if box.session_id == session.id]


async def test_a_warm_box_is_no_leak_and_a_forgotten_one_is_ended(
    stack: RunningStack, hf: Holdfast, session: Session
) -> None:
    events = await run(hf, session, "write a to a.txt")
    assert events[-1].type == "turn.completed"
    assert (await hf.leaks()).leaks == []
    (box,) = await boxes_of(hf, session)
    await close_entry(stack, session)
    async with asyncio.timeout(3 * Limits().reconcile_every):
        while await boxes_of(hf, session):
            await asyncio.sleep(0.1)
    assert (await hf.leaks()).leaks == []
    events = await run(hf, session, "run: cat a.txt")
    assert events[-1].type == "turn.completed"
    assert box not in await boxes_of(hf, session)


async def test_a_box_is_not_ended_under_a_running_turn(
    stack: RunningStack, hf: Holdfast, session: Session
) -> None:
    prompt = f"write a to a.txt\nrun: {UNTIL_LET_GO}\nwrite b to b.txt"
    turn = await hf.turns.start(session.id, prompt)
    await wait_for_event(hf, turn, "tool.result")
    (box,) = await boxes_of(hf, session)
    refused = await destroy(stack, "local", box)
    assert (refused.status_code, refused.json()["error"]["code"]) == (409, "turn_running")
    await let_go(hf, session)
    await wait_for_event(hf, turn, "turn.completed")
    assert await boxes_of(hf, session) == [box]
    for lived in (True, False):
        answer = await destroy(stack, "local", box)
        ended = Destroyed.model_validate_json(answer.content)
        assert (ended.lived, ended.proof) == (lived, "status is gone")
    assert await boxes_of(hf, session) == []
    assert (await destroy(stack, "moon", box)).status_code == 400
    assert (await hf.leaks()).leaks == []


async def test_a_queued_turn_runs_in_the_warm_box_of_the_one_before(
    hf: Holdfast, session: Session
) -> None:
    first = await hf.turns.start(session.id, f"write a to a.txt\nrun: {UNTIL_LET_GO}")
    await wait_for_event(hf, first, "tool.result")
    queued = await hf.turns.start(session.id, "run: cat a.txt", queue=True)
    assert queued.state == "queued"
    await let_go(hf, session)
    events = [event async for event in hf.turns.follow(queued)]
    assert events[-1].type == "turn.completed"
    assert of_type(events, "sandbox.attached")
    ended = await hf.turns.get(session.id, first.id)
    assert ended.receipt is not None
    assert events[0].seq == ended.last_seq + 1
