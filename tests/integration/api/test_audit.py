"""Who did what: on record when the answer is there, read by admins, kept within bounds."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import timedelta
from typing import Any
from uuid import UUID

import httpx
import pytest
from uuid_utils.compat import uuid7

from api.audit import Audit
from api.db import audit as db
from api.db.audit import Deed
from api.db.pool import Database
from tests.support.api import rows
from tests.support.api.database import NewDatabase
from tests.support.api.fault_injector import FaultInjector
from tests.support.api.serving import (
    QUICK,
    Api,
    assert_error,
    client_of,
    make_settings,
    new_token,
    serve_api,
    served,
)
from tests.support.services import SeaweedFS


async def entries(api: Api, **params: Any) -> list[dict[str, Any]]:
    """What is on record, the newest first."""
    answer = await api.http.get("/audit", params={"limit": 1000, **params})
    assert answer.status_code == 200, answer.text
    found: list[dict[str, Any]] = answer.json()["entries"]
    return found


async def newest(api: Api) -> int:
    return next((int(entry["id"]) for entry in await entries(api, limit=1)), 0)


@pytest.fixture
async def runner(api: Api) -> AsyncIterator[httpx.AsyncClient]:
    name = f"runner-{uuid7().hex[-12:]}"
    async with client_of(api, await new_token(api, name, "run")) as http:
        yield http


async def test_a_change_is_on_record_with_all_that_is_known_of_it(
    api: Api, runner: httpx.AsyncClient
) -> None:
    me = (await runner.get("/me")).json()["name"]
    after = await newest(api)
    runner.headers["X-Holdfast-Client"] = "robot"
    made = await runner.post("/sessions", json={"title": "a"})
    sid = made.json()["id"]
    steps = [
        (made, "session.create", 201, ""),
        (await runner.patch(f"/sessions/{sid}", json={"title": "b"}), "session.change", 200, ""),
        (
            await runner.put(f"/sessions/{sid}/files/d/a.txt", content=b"x"),
            "file.put",
            201,
            "d/a.txt",
        ),
        (await runner.post(f"/sessions/{sid}/kill"), "sandbox.kill", 404, ""),
        (await runner.delete(f"/sessions/{sid}"), "session.delete", 200, ""),
    ]
    found = list(reversed(await entries(api, after=after)))
    assert [
        (each["action"], each["status"], each["subject"], each["request_id"]) for each in found
    ] == [
        (action, status, subject, answer.headers["x-request-id"])
        for answer, action, status, subject in steps
    ]
    assert {answer.status_code for answer, *_ in steps} == {200, 201, 404}
    for each in found:
        assert (each["name"], each["role"], each["client"]) == (me, "run", "robot")
        # the record outlives the session
        assert each["session_id"] == sid
    assert await entries(api, session=sid, after=after) == list(reversed(found))


async def test_an_invoke_is_on_record_under_the_session_that_it_made(
    api: Api, runner: httpx.AsyncClient
) -> None:
    after = await newest(api)
    data = {"inputs": {"messages": [{"role": "user", "content": "go"}]}}
    answer = await runner.post("/invoke", json={"data": data})
    assert answer.status_code == 200, answer.text
    (found,) = await entries(api, after=after)
    assert (found["action"], found["session_id"]) == ("invoke", answer.headers["x-session-id"])
    session = (await runner.get(f"/sessions/{found['session_id']}")).json()
    assert session["made_by"] == found["name"]


async def test_what_a_role_may_not_is_on_record_and_what_nobody_asked_is_not(api: Api) -> None:
    session = await api.new_session()
    token = await new_token(api, "looker", "read")
    after = await newest(api)
    async with client_of(api, token) as reader, client_of(api, "wrong") as stranger:
        assert_error(await reader.delete(f"/sessions/{session.id}"), 403, "role_too_small")
        assert_error(await reader.post("/tokens", json={}), 403, "role_too_small")
        assert_error(await reader.get("/audit"), 403, "role_too_small")
        assert_error(await stranger.delete(f"/sessions/{session.id}"), 401, "unauthenticated")
        assert (await reader.get(f"/sessions/{session.id}")).status_code == 200
    found = await entries(api, after=after)
    assert [(each["name"], each["action"], each["status"]) for each in found] == [
        ("looker", "token.create", 403),
        ("looker", "session.delete", 403),
    ]
    assert found[1]["session_id"] == str(session.id)


async def test_tokens_and_logins_are_on_record_by_name_and_never_by_what_they_are(api: Api) -> None:
    after = await newest(api)
    token = await new_token(api, "brief", "read")
    async with client_of(api, None) as browser:
        await browser.get("/", params={"token": token})
        await browser.get("/", params={"token": "wrong"})
        refused = await browser.post(
            "/sessions", json={}, headers={"Origin": "http://evil.example"}
        )
        assert_error(refused, 403, "cross_origin")
    await api.http.delete("/tokens/brief")
    found = await entries(api, after=after)
    assert [(each["action"], each["name"], each["subject"]) for each in found] == [
        ("token.delete", "owner", "brief"),
        ("session.create", "brief", ""),
        ("login", "brief", ""),
        ("token.create", "owner", "brief"),
    ]
    assert [each["client"] for each in found[1:3]] == ["page", "page"]
    assert token not in str(found)


async def test_a_subject_that_no_database_takes_is_on_record_as_far_as_it_can_be(api: Api) -> None:
    session = await api.new_session()
    after = await newest(api)
    for path in ("a%00b", "%ff", "x" * 1000, "a%0Ab"):
        await api.http.delete(f"/sessions/{session.id}/files/{path}")
    await api.http.delete("/sessions/no-uuid")
    found = await entries(api, after=after)
    assert [each["subject"] for each in found] == ["", "a\ufffdb", "x" * 300, "\ufffd", "a\ufffdb"]
    assert found[0]["session_id"] is None


async def test_pages_are_read_to_the_end_by_their_cursor(api: Api) -> None:
    after = await newest(api)
    session = await api.new_session()
    for number in range(6):
        await api.http.patch(f"/sessions/{session.id}", json={"title": str(number)})
    read: list[int] = []
    cursor: str | None = None
    for _ in range(10):
        params = {"after": after, "limit": 3} | ({"cursor": cursor} if cursor else {})
        page = (await api.http.get("/audit", params=params)).json()
        read += [entry["id"] for entry in page["entries"]]
        cursor = page["next_cursor"]
        if cursor is None:
            break
    assert read == [entry["id"] for entry in await entries(api, after=after)]
    assert len(read) == 7
    assert read == sorted(read, reverse=True)


@pytest.mark.parametrize(
    "params",
    [{"cursor": "x"}, {"cursor": "WzFd.."}, {"after": -1}, {"limit": 0}, {"session": "x"}],
)
async def test_bad_paging_is_a_400(api: Api, params: dict[str, Any]) -> None:
    assert_error(await api.http.get("/audit", params=params), 400, "invalid_input")


async def test_a_record_that_cannot_be_written_fails_no_request_and_is_told(
    new_database: NewDatabase, store_service: SeaweedFS
) -> None:
    url = await new_database()
    injector = FaultInjector()
    async with served(injector.app()) as sidecar_url:
        settings = make_settings(url, store_service, sidecar_url)
        async with serve_api(settings, injector) as api:
            async with rows.audit_away(url):
                assert (await api.http.post("/sessions", json={})).status_code == 201
                ready = await api.http.get("/readyz")
            assert ready.status_code == 503
            assert ready.json()["parts"]["audit"].startswith("1 records were lost")
            assert (await api.http.post("/sessions", json={})).status_code == 201
            assert (await api.http.get("/readyz")).json()["parts"]["audit"] == "ok"
            assert len(await entries(api)) == 1


async def test_an_answer_waits_for_its_record_only_so_long(
    new_database: NewDatabase, store_service: SeaweedFS
) -> None:
    limits = replace(QUICK, record_within=0.2)
    url = await new_database()
    injector = FaultInjector()
    async with served(injector.app()) as sidecar_url:
        settings = make_settings(url, store_service, sidecar_url)
        async with serve_api(settings, injector, limits) as api:
            async with rows.connect(url) as conn, conn.transaction():
                await rows.lock_audit(conn)
                async with asyncio.timeout(20):
                    assert (await api.http.post("/sessions", json={})).status_code == 201
            assert "lost" in (await api.http.get("/readyz")).json()["parts"]["audit"]


def deed(session_id: UUID | None = None) -> Deed:
    return Deed("someone", "run", "cli", "turn.start", session_id, "", 202, "r")


async def test_what_is_old_or_too_much_is_forgotten(database: Database) -> None:
    async with database.connection() as conn:
        for _ in range(10):
            await db.insert(conn, deed())
        await rows.age_audit(conn, 3, timedelta(days=31))
        assert await Audit(database, 30, 100, record_within=2.0).sweep() == 3
        assert await Audit(database, 30, 5, record_within=2.0).sweep() == 2
        assert await Audit(database, 30, 5, record_within=2.0).sweep() == 0
        left = await db.page(conn, after=0, before=None, session_id=None, limit=100)
    assert [entry.id for entry in left] == [10, 9, 8, 7, 6]
