"""Sessions over HTTP."""

from __future__ import annotations

import httpx
import pytest
from uuid_utils.compat import uuid7

from contracts.bodies import Session, SessionPage
from contracts.errors import TurnRunning
from contracts.events import dumps
from tests.support.api.serving import NOBODY, Api, assert_error


async def page(api: Api, **params: str | int) -> SessionPage:
    answer = await api.http.get("/sessions", params=params)
    assert answer.status_code == 200, answer.text
    return SessionPage.model_validate_json(answer.content)


async def test_a_session_is_made_with_the_stacks_defaults(api: Api) -> None:
    session = await api.new_session(title="first")
    assert (session.harness, session.provider, session.permissions) == ("claude", "local", "auto")
    assert session.id.version == 7
    assert session.last_seq == 0
    answer = await api.http.get(f"/sessions/{session.id}")
    assert Session.model_validate_json(answer.content) == session


async def test_pages_show_every_session_once_newest_activity_first(api: Api) -> None:
    made = [await api.new_session(title=f"page {number}") for number in range(7)]
    renamed = await api.http.patch(f"/sessions/{made[2].id}", json={"title": "moved up"})
    assert renamed.json()["title"] == "moved up"
    seen: list[Session] = []
    cursor: dict[str, str] = {}
    for _ in range(50):
        found = await page(api, limit=3, **cursor)
        assert len(found.sessions) <= 3
        seen += found.sessions
        if found.next_cursor is None:
            break
        cursor = {"cursor": found.next_cursor}
    ids = [session.id for session in seen]
    assert len(ids) == len(set(ids))
    assert ids[0] == made[2].id
    assert ids[1:7] == [made[index].id for index in (6, 5, 4, 3, 1, 0)]


async def test_an_archived_session_leaves_the_list_and_comes_back(api: Api) -> None:
    session = await api.new_session(title="archive me")
    path = f"/sessions/{session.id}"
    assert (await api.http.patch(path, json={"archived": True})).json()["archived"] is True
    assert session.id not in [each.id for each in (await page(api, limit=200)).sessions]
    archived = (await page(api, limit=200, archived="true")).sessions
    assert [each.id for each in archived] == [session.id]
    answer = await api.http.patch(path, json={"archived": False})
    assert answer.json()["title"] == "archive me"
    assert session.id in [each.id for each in (await page(api, limit=200)).sessions]


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        ({"harness": "emacs"}, 400, "unknown_harness"),
        ({"provider": "moon"}, 400, "unknown_provider"),
        ({"provider": "e2b"}, 400, "unsupported_choice"),
        ({"harness": "pi", "permissions": "ask"}, 400, "unsupported_choice"),
        ({"title": "x" * 201}, 400, "invalid_input"),
        ({"title": "a\0b"}, 400, "invalid_input"),
        ({"model": "a\0b"}, 400, "invalid_input"),
        ({"title": "\ud800"}, 400, "invalid_input"),
        ({"permissions": "always"}, 400, "invalid_input"),
        ({"surprise": 1}, 400, "invalid_input"),
        ([], 400, "invalid_input"),
    ],
)
async def test_a_refused_session_leaves_nothing_behind(
    api: Api, body: object, status: int, code: str
) -> None:
    before = (await page(api, limit=200)).sessions
    answer = await api.http.post(
        "/sessions", content=dumps(body), headers={"Content-Type": "application/json"}
    )
    error = assert_error(answer, status, code)
    if code == "unknown_harness":
        assert error["known"] == ["claude", "pi"]
    if body == {"provider": "e2b"}:
        assert "E2B_API_KEY" in error["message"]
    assert (await page(api, limit=200)).sessions == before


async def test_malformed_json_is_an_error_body(api: Api) -> None:
    answer = await api.http.post(
        "/sessions", content=b'{"title": ', headers={"Content-Type": "application/json"}
    )
    assert_error(answer, 400, "invalid_input")


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", f"/sessions/{NOBODY}", 404, "session_not_found"),
        ("PATCH", f"/sessions/{NOBODY}", 404, "session_not_found"),
        ("DELETE", f"/sessions/{NOBODY}", 404, "session_not_found"),
        ("GET", f"/sessions/{NOBODY}/events", 404, "session_not_found"),
        ("GET", f"/sessions/{NOBODY}/turns", 404, "session_not_found"),
        ("GET", f"/sessions/{NOBODY}/files", 404, "session_not_found"),
        ("GET", f"/sessions/{NOBODY}/files/a", 404, "session_not_found"),
        ("GET", f"/sessions/{NOBODY}/live", 404, "session_not_found"),
        ("POST", f"/sessions/{NOBODY}/kill", 404, "session_not_found"),
        ("GET", "/sessions/not-an-id", 400, "invalid_input"),
        ("GET", "/sessions?limit=0", 400, "invalid_input"),
        ("GET", "/sessions?cursor=nonsense", 400, "invalid_input"),
        ("GET", "/sessions?cursor=WyJ4Il0", 400, "invalid_input"),
        ("GET", "/no/such/route", 404, "not_found"),
        ("PUT", "/sessions", 405, "method_not_allowed"),
    ],
)
async def test_what_is_not_there_is_an_error_body(
    api: Api, method: str, path: str, status: int, code: str
) -> None:
    body = {"title": "x"} if method == "PATCH" else None
    assert_error(await api.http.request(method, path, json=body), status, code)


async def test_a_kill_reaches_the_sandbox_and_says_so_when_there_is_none(api: Api) -> None:
    session = await api.new_session()
    path = f"/sessions/{session.id}/kill"
    error = assert_error(await api.http.post(path), 404, "sandbox_not_found")
    assert error["hint"]
    api.injector.boxes[session.id] = "box-7"
    listed = (await api.http.get("/sandboxes")).json()["sandboxes"]
    assert [box["sandbox_id"] for box in listed] == ["box-7"]
    answer = await api.http.post(path)
    assert answer.json() == {
        "session_id": str(session.id),
        "killed": True,
        "sandbox_id": "box-7",
    }


async def test_capabilities_are_the_sidecars(api: Api) -> None:
    answer = await api.http.get("/capabilities")
    assert [each["name"] for each in answer.json()["harnesses"]] == ["claude", "pi"]


async def test_readiness_names_every_part(api: Api) -> None:
    answer = await api.http.get("/readyz")
    assert answer.status_code == 200
    assert answer.json() == {
        "ready": True,
        "parts": {"database": "ok", "store": "ok", "sidecar": "ok", "audit": "ok"},
    }


async def test_what_nobody_expected_is_500_with_an_id_that_the_log_has(
    api: Api, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def explode(*_args: object) -> None:
        raise RuntimeError("a detail that is not for clients")

    monkeypatch.setattr("api.sessions.Sessions.get", explode)
    answer = await api.http.get(f"/sessions/{uuid7()}")
    error = assert_error(answer, 500, "internal")
    assert "detail" not in answer.text
    assert answer.headers["x-request-id"] == error["request_id"]
    assert answer.headers["x-content-type-options"] == "nosniff"
    (record,) = [each for each in caplog.records if each.exc_info]
    assert error["request_id"] in record.getMessage()
    assert record.exc_info is not None
    assert isinstance(record.exc_info[1], RuntimeError)


async def test_errors_of_the_body_do_not_echo_what_was_sent(api: Api) -> None:
    secret = "hunter2hunter2"
    answer: httpx.Response = await api.http.post("/sessions", json={"permissions": secret})
    assert secret not in answer.text


async def test_a_sandbox_is_destroyed_with_proof_and_only_once(api: Api) -> None:
    session = await api.new_session(title="boxed")
    await api.ended(await api.start(session.id))
    path = f"/sessions/{session.id}/destroy"
    assert_error(await api.http.post(path), 404, "sandbox_not_found")
    api.injector.boxes[session.id] = "box-1"
    listed = (await api.http.get("/sandboxes")).json()["sandboxes"]
    assert [box["title"] for box in listed if box["session_id"] == str(session.id)] == ["boxed"]
    api.injector.destroy_errors.append(TurnRunning("in use"))
    assert_error(await api.http.post(path), 409, "turn_running")
    answer = await api.http.post(path)
    assert (answer.json()["sandbox_id"], answer.json()["proof"]) == ("box-1", "status is gone")
    assert_error(await api.http.post(path), 404, "sandbox_not_found")
    assert_error(await api.http.post(f"/sessions/{uuid7()}/destroy"), 404, "session_not_found")
