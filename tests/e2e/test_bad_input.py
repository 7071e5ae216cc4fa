"""Bad input: a clear 4xx, and nothing half-made left behind."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from client import Holdfast
from contracts.bodies import Session
from tests.e2e.conftest import RunningStack, wait_for_event


@pytest.fixture
async def http(stack: RunningStack) -> AsyncIterator[httpx.AsyncClient]:
    headers = {"authorization": f"Bearer {stack.token}"}
    async with httpx.AsyncClient(base_url=stack.url, headers=headers, trust_env=False) as client:
        yield client


def check(answer: httpx.Response, status: int, code: str) -> dict[str, Any]:
    assert answer.status_code == status, answer.text
    error: dict[str, Any] = answer.json()["error"]
    assert error["code"] == code
    assert error["message"]
    assert "hint" in error
    return error


async def counts(http: httpx.AsyncClient, session: Session) -> tuple[int, int]:
    turns = (await http.get(f"/sessions/{session.id}/turns")).json()["turns"]
    return len(turns), (await http.get(f"/sessions/{session.id}")).json()["last_seq"]


async def test_unknown_names_are_refused_with_the_known_ones(
    http: httpx.AsyncClient, session: Session
) -> None:
    turns = f"/sessions/{session.id}/turns"
    answer = await http.post(turns, json={"prompt": "x", "harness": "emacs"})
    assert "claude" in check(answer, 400, "unknown_harness")["hint"]
    answer = await http.post(turns, json={"prompt": "x", "provider": "moon"})
    assert "local" in check(answer, 400, "unknown_provider")["hint"]
    answer = await http.post("/sessions", json={"harness": "emacs"})
    check(answer, 400, "unknown_harness")
    assert await counts(http, session) == (0, 0)


async def test_an_unknown_session_or_turn_is_404(http: httpx.AsyncClient, session: Session) -> None:
    nobody = uuid.uuid4()
    check(await http.get(f"/sessions/{nobody}"), 404, "session_not_found")
    answer = await http.post(f"/sessions/{nobody}/turns", json={"prompt": "x"})
    check(answer, 404, "session_not_found")
    check(await http.get(f"/sessions/{nobody}/events"), 404, "session_not_found")
    check(await http.get(f"/sessions/{session.id}/turns/{nobody}"), 404, "turn_not_found")
    check(await http.get(f"/sessions/{session.id}/files/nothing.txt"), 404, "file_not_found")


async def test_paths_that_lead_out_are_refused(http: httpx.AsyncClient, session: Session) -> None:
    for path in ("..%2fother", "a/%2e%2e/b", "a%5cb", "a%00b"):
        answer = await http.get(f"/sessions/{session.id}/files/{path}")
        check(answer, 400, "invalid_path")
    for path in ("../x", "/etc", "a//b"):
        answer = await http.get(f"/sessions/{session.id}/files", params={"path": path})
        check(answer, 400, "invalid_path")


async def test_malformed_and_oversized_bodies(http: httpx.AsyncClient, session: Session) -> None:
    turns = f"/sessions/{session.id}/turns"
    headers = {"content-type": "application/json"}
    check(await http.post(turns, content=b'{"prompt": ', headers=headers), 400, "invalid_input")
    check(await http.post(turns, json={"prompt": ""}), 400, "invalid_input")
    check(await http.post(turns, json={"prompt": "x", "color": "red"}), 400, "invalid_input")
    check(await http.post(turns, json={"prompt": "x" * 10_000_000}), 413, "too_large")
    assert await counts(http, session) == (0, 0)


async def test_two_turns_at_once_is_a_409_that_names_the_running_one(
    http: httpx.AsyncClient, hf: Holdfast, session: Session
) -> None:
    turn = await hf.turns.start(session.id, "wait 60 seconds")
    answer = await http.post(f"/sessions/{session.id}/turns", json={"prompt": "x"})
    assert check(answer, 409, "turn_running")["turn_id"] == str(turn.id)
    await hf.turns.cancel(session.id, turn.id)
    await wait_for_event(hf, turn, "turn.cancelled")
    assert (await counts(http, session))[0] == 1


async def test_without_the_token_nothing_is_told(stack: RunningStack, session: Session) -> None:
    async with httpx.AsyncClient(base_url=stack.url, trust_env=False) as http:
        assert (await http.get("/healthz")).status_code == 200
        check(await http.get("/sessions"), 401, "unauthenticated")
        wrong = {"authorization": "Bearer wrong"}
        answer = await http.get(f"/sessions/{session.id}", headers=wrong)
        check(answer, 401, "unauthenticated")
