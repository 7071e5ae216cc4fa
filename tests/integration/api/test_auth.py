"""Nothing without a token but /healthz, and with one what its role may."""

from __future__ import annotations

import re

import httpx
import pytest

from api.app import create_app
from api.auth import cookie_name
from api.roles import OPEN, RANK, RULES
from contracts.bodies import Role
from tests.support.api.serving import TOKEN, Api, assert_error, client_of, new_token
from tests.support.api.walking import METHODS, address, templates
from tests.support.paths import ROOT


def walked(api: Api) -> set[tuple[str, str]]:
    found = set(templates(create_app(api.settings).routes))
    assert len(found) > 35
    return found


async def test_every_route_but_health_needs_a_token_by_every_method(api: Api) -> None:
    cookie = cookie_name(api.settings.sidecar_secret)
    wrong: list[dict[str, str]] = [
        {},
        {"Authorization": "Bearer wrong"},
        {"Authorization": f"Bearer hf_{'A' * 43}"},
        {"Authorization": f"Basic {TOKEN}"},
        {"Authorization": f"Bearer {TOKEN}x"},
        {"Cookie": f"{cookie}={TOKEN}"},
        {"Cookie": f"{cookie}={'0' * 64}"},
        # a wrong header is not made good by a right one beside it
        {"Authorization": "Bearer wrong", "Cookie": f"{cookie}={TOKEN}"},
    ]
    there = walked(api)
    asked = {(method, template) for _, template in there for method in METHODS}
    asked |= {("GET", "/no-such-route"), ("POST", "/no-such-route")}
    async with client_of(api, None) as stranger:
        for method, template in asked - {OPEN}:
            # where there is a route, every wrong way; where there is none, it is not told
            for headers in wrong if (method, template) in there else wrong[:1]:
                answer = await stranger.request(method, address(template), headers=headers)
                assert answer.status_code == 401, (method, template, headers)
                assert "access-control-allow-origin" not in answer.headers
                if method != "HEAD":
                    assert assert_error(answer, 401, "unauthenticated")["hint"]
        assert (await stranger.get("/healthz")).json() == {"status": "ok"}
        for path in ("/healthz%3Fa", "/healthz%23a", "/healthz%0A", "/healthz/", "//healthz"):
            assert_error(await stranger.get(api.url + path), 401, "unauthenticated")


async def test_every_route_has_a_role_and_no_role_is_of_a_route_that_is_gone(api: Api) -> None:
    found = {(method, template) for method, template in walked(api) if method != "HEAD"}
    assert found == {*RULES, OPEN}


def test_what_changes_something_has_a_name_on_record_and_is_not_for_readers() -> None:
    for (method, template), rule in RULES.items():
        assert bool(rule.action) == (method != "GET"), template
        assert method == "GET" or rule.role != "read", template


@pytest.mark.parametrize("role", ["read", "run", "admin"])
async def test_a_role_gets_to_its_routes_and_is_told_which_one_the_others_need(
    api: Api, role: Role
) -> None:
    token = await new_token(api, f"walks-{role}", role)
    async with client_of(api, token) as http:
        for (method, template), rule in RULES.items():
            answer = await http.request(method, address(template))
            if RANK[role] >= RANK[rule.role]:
                assert answer.status_code not in (401, 403), (method, template)
                continue
            error = assert_error(answer, 403, "role_too_small")
            assert (error["role"], error["needs"]) == (role, rule.role)
            assert f"`{rule.role}`" in error["message"]
            assert f"--role {rule.role}" in error["hint"]


@pytest.mark.parametrize("role", ["read", "run"])
async def test_a_route_that_nobody_declared_is_for_admins_alone(api: Api, role: Role) -> None:
    token = await new_token(api, f"strays-{role}", role)
    async with client_of(api, token) as http:
        for method, path in (
            ("GET", "/no-such-route"),
            ("PATCH", "/tokens"),
            ("GET", "/tokens%0A"),
        ):
            assert_error(await http.request(method, path), 404, "not_found")
    assert (await api.http.patch("/tokens")).status_code == 405


@pytest.mark.parametrize("role", ["read", "run"])
async def test_tokens_and_the_record_are_for_admins_alone(api: Api, role: Role) -> None:
    """Said once more here, so that a change of the table alone is noticed."""
    token = await new_token(api, f"curious-{role}", role)
    made = {"name": f"made-by-{role}", "role": "admin"}
    async with client_of(api, token) as http:
        for answer in (
            await http.get("/tokens"),
            await http.post("/tokens", json=made),
            await http.delete(f"/tokens/curious-{role}"),
            await http.get("/audit"),
        ):
            assert assert_error(answer, 403, "role_too_small")["needs"] == "admin"
    names = {each["name"] for each in (await api.http.get("/tokens")).json()["tokens"]}
    assert made["name"] not in names
    assert f"curious-{role}" in names


async def test_who_asks_is_told(api: Api) -> None:
    assert (await api.http.get("/me")).json() == {"name": "owner", "role": "admin"}
    async with client_of(api, await new_token(api, "told", "read")) as http:
        assert (await http.get("/me")).json() == {"name": "told", "role": "read"}


async def test_a_browser_without_a_login_gets_a_page_it_can_read(api: Api) -> None:
    async with client_of(api, None) as browser:
        for params in ({}, {"token": "wrong"}, {"token": ""}):
            answer = await browser.get("/", params=params, headers={"Accept": "text/html"})
            assert answer.status_code == 401
            assert answer.headers["content-type"].startswith("text/html")
            assert "holdfast up" in answer.text
            assert "set-cookie" not in answer.headers


CONTENT_SECURITY_POLICY = {
    "default-src": "'self'",
    "object-src": "'none'",
    "base-uri": "'none'",
    "form-action": "'self'",
    "frame-ancestors": "'none'",
    "frame-src": "blob:",
    "require-trusted-types-for": "'script'",
    "trusted-types": "'none'",
}
SECURITY_HEADERS = {
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}
STATIC = ROOT / "api" / "static"
WRITES_MARKUP = re.compile(
    r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|dangerouslySetInnerHTML|srcdoc"
)


@pytest.mark.parametrize("path", ["/", "/sessions", "/healthz", "/no-such-route", "/static/app.js"])
async def test_every_answer_has_the_security_headers(api: Api, path: str) -> None:
    every: list[dict[str, str]] = [
        {},
        {"Authorization": "Bearer wrong"},
        {"Host": "evil.example"},
    ]
    for headers in every:
        answer = await api.http.get(path, headers=headers)
        policy = answer.headers["content-security-policy"]
        directives = dict(each.strip().split(" ", 1) for each in policy.split(";"))
        assert directives == CONTENT_SECURITY_POLICY
        assert {name: answer.headers.get(name) for name in SECURITY_HEADERS} == SECURITY_HEADERS
        # the page may be kept, and is asked for again each time
        kept = answer.status_code == 200 and (path == "/" or path.startswith("/static/"))
        assert answer.headers["cache-control"] == ("no-cache" if kept else "no-store")


async def test_the_page_has_nothing_inline(api: Api) -> None:
    page = (await api.http.get("/")).text
    assert not re.search(r"<style|\bstyle=|\bon\w+=|<script(?![^>]*\bsrc=)|https?://", page)


def test_no_module_of_the_page_writes_markup() -> None:
    modules = [
        path
        for path in STATIC.rglob("*.js")
        if path.relative_to(STATIC).parts[0] != "vendor"  # the policy has no trusted types for it
    ]
    assert len(modules) >= 30
    for path in modules:
        found = WRITES_MARKUP.search(path.read_text())
        assert found is None, f"{path.relative_to(STATIC)}: {found}"


async def test_openapi_lists_the_routes_to_who_has_the_token(api: Api) -> None:
    answer = await api.http.get("/openapi.json")
    assert {"/sessions", "/invoke", "/sessions/{sid}/events"} <= answer.json()["paths"].keys()


async def test_a_database_that_is_away_is_no_wrong_token(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A named token cannot be looked up then; the owner's needs no looking up."""
    from api.tokens import Tokens
    from contracts.errors import DatabaseUnavailable

    async def away(*_: object, **__: object) -> None:
        raise DatabaseUnavailable("The database does not answer.")

    token = await new_token(api, "waits", "read")
    monkeypatch.setattr(Tokens, "find", away)
    async with client_of(api, token) as http:
        answer: httpx.Response = await http.get("/me")
        assert assert_error(answer, 503, "database_unavailable")["retryable"] is True
    assert (await api.http.get("/me")).status_code == 200


async def test_who_is_refused_in_the_middle_of_an_upload_hears_why(api: Api) -> None:
    session = await api.new_session()
    async with client_of(api, await new_token(api, "uploads", "read")) as http:
        path = f"/sessions/{session.id}/files/big"
        answer = await http.put(path, content=b"x" * (8 << 20))
        assert_error(answer, 403, "role_too_small")
    listed = await api.http.get(f"/sessions/{session.id}/files")
    assert listed.json()["entries"] == []
