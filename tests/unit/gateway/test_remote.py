"""The gateway's port for sandboxes in a cloud: a token names the session, and opens no other."""

from __future__ import annotations

from collections.abc import AsyncIterator
from uuid import UUID, uuid4

import pytest

from contracts.session_tokens import session_of, session_token
from tests.support.gateway import (
    PORT_SECRET,
    REAL_KEY,
    Gateway,
    chat,
    client_of,
    client_of_port,
    gateway,
    port_settings,
    status_by_port,
    token_of,
    until,
    vendor,
)
from tests.support.services import free_port


@pytest.fixture(scope="module")
def port() -> int:
    return free_port()


@pytest.fixture(scope="module")
async def shared(port: int) -> AsyncIterator[Gateway]:
    """One gateway for all tests."""
    async with gateway(**port_settings(port)) as running:
        yield running


@pytest.fixture
async def session_id(shared: Gateway) -> UUID:
    opened = uuid4()
    await shared.open(opened)
    return opened


async def close(running: Gateway, session_id: UUID) -> None:
    async with client_of(running.control) as control:
        (await control.delete(f"/sessions/{session_id}")).raise_for_status()


def logged(running: Gateway, session_id: UUID) -> int:
    """How many requests the session is known to have made."""
    lines = running.log.splitlines()
    return sum(f"session={session_id} " in line and "status=200" in line for line in lines)


@pytest.mark.parametrize("scheme", ["Bearer", "bearer", "x-api-key"])
async def test_a_sessions_token_opens_its_own_session(
    shared: Gateway, port: int, session_id: UUID, scheme: str
) -> None:
    neighbour = uuid4()
    await shared.open(neighbour)
    given = token_of(session_id)
    headers = {scheme: given} if scheme == "x-api-key" else {"authorization": f"{scheme} {given}"}
    async with client_of_port(port, **headers) as client:
        answer = await client.post("/v1/chat/completions", json=chat("say hi"))
    assert answer.json()["choices"][0]["message"]["content"] == "hi"
    await until(lambda: logged(shared, session_id) == 1)  # said after the answer
    assert logged(shared, neighbour) == 0


async def test_no_other_token_opens_anything(shared: Gateway, port: int, session_id: UUID) -> None:
    neighbour = uuid4()
    await shared.open(neighbour)
    sign = token_of(session_id).partition(".")[2]
    wrong = {
        "forged": f"{session_id}.{'0' * len(sign)}",
        "of another secret": token_of(session_id, "another secret"),
        "of one session for another": f"{neighbour}.{sign}",
        "a session's name alone": str(session_id),
        "cut short": token_of(session_id)[:-1],
        "longer": token_of(session_id) + "0",
        "only a sign": f".{sign}",
        "of no session": token_of(""),
        "of what is no session": token_of("not-a-uuid"),
        "what containers say": "by-socket",
    }
    answers = {
        what: (
            await status_by_port(port, authorization=f"Bearer {given}"),
            await status_by_port(port, **{"x-api-key": given}),
        )
        for what, given in wrong.items()
    }
    assert answers == dict.fromkeys(wrong, (401, 401))
    assert await status_by_port(port) == 401
    assert await status_by_port(port, authorization="Bearer") == 401
    assert (logged(shared, session_id), logged(shared, neighbour)) == (0, 0)


async def test_a_token_that_is_no_text_is_refused(port: int, session_id: UUID) -> None:
    async with client_of_port(port) as client:
        answer = await client.get("/", headers={b"x-api-key": b"\xff\xfe." + b"0" * 64})
    assert answer.status_code == 401


async def test_the_token_of_a_closed_session_opens_nothing_until_it_is_opened_again(
    shared: Gateway, port: int, session_id: UUID
) -> None:
    headers = {"authorization": f"Bearer {token_of(session_id)}"}
    async with client_of_port(port, **headers) as client:
        body = chat("say hi")
        assert (await client.post("/v1/chat/completions", json=body)).status_code == 200
        await close(shared, session_id)
        # by the same connection, too
        assert (await client.post("/v1/chat/completions", json=body)).status_code == 401
        await shared.open(session_id)
        assert (await client.post("/v1/chat/completions", json=body)).status_code == 200


async def test_a_session_that_was_never_opened_has_nothing_here(port: int) -> None:
    """Also one whose token is right: the sidecar opens a session before a sandbox has it."""
    assert await status_by_port(port, authorization=f"Bearer {token_of(uuid4())}") == 401


@pytest.mark.parametrize(
    ("headers", "kind"),
    [({"anthropic-version": "2023-06-01"}, "authentication_error"), ({}, None)],
)
async def test_a_refusal_is_in_the_words_of_the_api_that_was_meant(
    port: int, headers: dict[str, str], kind: str | None
) -> None:
    async with client_of_port(port, **headers) as client:
        answer = await client.post("/v1/messages", json={})
    assert answer.status_code == 401
    assert "opens no session" in answer.json()["error"]["message"]
    if kind:
        assert answer.json()["error"]["type"] == kind


async def test_an_answer_streams_as_the_model_gives_it_and_the_token_stays_here() -> None:
    port, opened = free_port(), uuid4()
    async with vendor() as model:
        keys = {"ANTHROPIC_API_KEY": REAL_KEY, "ANTHROPIC_BASE_URL": model.url}
        async with (
            gateway(**port_settings(port), **keys) as running,
            client_of_port(port, **{"x-api-key": token_of(opened)}) as client,
        ):
            await running.open(opened)
            model.first_byte.set()
            async with client.stream("POST", "/v1/messages", json={"model": "m"}) as answer:
                assert answer.status_code == 200
                lines = answer.aiter_lines()
                # the vendor sends the second one when we have seen the first
                assert await anext(lines) == "data: one"
                model.go_on.set()
                assert "data: two" in [line async for line in lines]
            _, headers, _ = model.requests[0]
            assert headers["x-api-key"] == REAL_KEY
            assert token_of(opened) not in str(headers)
            assert token_of(opened) not in running.log
            assert PORT_SECRET not in running.log


async def test_who_hangs_up_ends_the_request_to_the_model() -> None:
    port, opened = free_port(), uuid4()
    async with vendor() as model:
        keys = {"ANTHROPIC_API_KEY": REAL_KEY, "ANTHROPIC_BASE_URL": model.url}
        async with (
            gateway(**port_settings(port), **keys) as running,
            client_of_port(port, authorization=f"Bearer {token_of(opened)}") as client,
        ):
            await running.open(opened)
            model.first_byte.set()
            async with client.stream("POST", "/v1/messages", json={"model": "m"}) as answer:
                assert await anext(answer.aiter_lines()) == "data: one"
            await until(model.hung_up.is_set)


def test_a_token_names_the_session_that_it_was_made_for() -> None:
    made = session_token(b"one", "a-session")
    assert session_of(b"one", made) == "a-session"
    assert session_of(b"two", made) is None
    assert b"one".decode() not in made.partition(".")[2]
