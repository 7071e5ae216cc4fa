"""Nothing without the token but /healthz."""

from __future__ import annotations

import re
from collections.abc import Iterator

import httpx
import pytest
from fastapi.routing import APIRoute
from starlette.routing import BaseRoute, Mount, Route
from uuid_utils.compat import uuid7

from api.app import create_app
from tests.api.serving import TOKEN, Api, assert_error


def addresses(routes: list[BaseRoute]) -> Iterator[tuple[str, str]]:
    for route in routes:
        if isinstance(route, Mount):
            yield "GET", f"{route.path}/app.js"
        elif isinstance(route, APIRoute | Route):
            path = re.sub(r"\{path:\w+\}", "a.txt", route.path)
            path = re.sub(r"\{\w+\}", str(uuid7()), path)
            for method in sorted(route.methods or {"GET"}):
                yield method, path
        elif hasattr(route, "original_router"):  # how FastAPI keeps a router that was included
            yield from addresses(route.original_router.routes)
        else:
            pytest.fail(f"a kind of route that this test does not know: {route!r}")


async def test_every_route_but_health_needs_the_token(api: Api) -> None:
    walked = list(addresses(list(create_app(api.settings).routes)))
    assert len(walked) > 20
    async with httpx.AsyncClient(base_url=api.url, trust_env=False) as stranger:
        for method, path in [*walked, ("GET", "/no-such-route"), ("OPTIONS", "/sessions")]:
            if (method, path) == ("GET", "/healthz"):
                continue
            for headers in ({}, {"Authorization": "Bearer wrong"}, {"Cookie": f"holdfast={TOKEN}"}):
                answer = await stranger.request(method, path, headers=headers)
                assert answer.status_code == 401, (method, path)
                if method != "HEAD":
                    assert assert_error(answer, 401, "unauthenticated")["hint"]
        assert (await stranger.get("/healthz")).json() == {"status": "ok"}


async def test_the_login_link_sets_a_cookie_that_is_not_the_token(api: Api) -> None:
    async with httpx.AsyncClient(base_url=api.url, trust_env=False) as browser:
        answer = await browser.get("/", params={"token": TOKEN})
        assert (answer.status_code, answer.headers["location"]) == (303, "/")
        cookie = answer.headers["set-cookie"].lower()
        assert cookie.startswith("holdfast=")
        assert "httponly" in cookie
        assert "samesite=strict" in cookie
        assert TOKEN not in answer.headers["set-cookie"]
        page = await browser.get("/")
        assert page.status_code == 200
        assert "<title>Holdfast</title>" in page.text
        for name in ("app.js", "css/base.css"):
            assert (await browser.get(f"/static/{name}")).status_code == 200
        assert (await browser.get("/sessions")).status_code == 200


async def test_a_browser_without_a_login_gets_a_page_it_can_read(api: Api) -> None:
    async with httpx.AsyncClient(base_url=api.url, trust_env=False) as browser:
        for params in ({}, {"token": "wrong"}, {"token": ""}):
            answer = await browser.get("/", params=params, headers={"Accept": "text/html"})
            assert answer.status_code == 401
            assert answer.headers["content-type"].startswith("text/html")
            assert "holdfast up" in answer.text
            assert "set-cookie" not in answer.headers


async def test_a_page_of_another_origin_cannot_write_with_the_cookie(api: Api) -> None:
    async with httpx.AsyncClient(base_url=api.url, trust_env=False) as browser:
        await browser.get("/", params={"token": TOKEN})
        for headers in ({"Origin": "http://127.0.0.1:1"}, {"Sec-Fetch-Site": "same-site"}):
            answer = await browser.post("/sessions", json={}, headers=headers)
            assert_error(answer, 401, "unauthenticated")
        same = await browser.post("/sessions", json={}, headers={"Origin": api.url})
        assert same.status_code == 201


@pytest.mark.parametrize("path", ["/", "/sessions", "/healthz", "/no-such-route", "/static/app.js"])
async def test_every_answer_has_the_security_headers(api: Api, path: str) -> None:
    for headers in ({}, {"Authorization": "Bearer wrong"}):
        answer = await api.http.get(path, headers=headers)
        assert "default-src 'self'" in answer.headers["content-security-policy"]
        assert "frame-ancestors 'none'" in answer.headers["content-security-policy"]
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["referrer-policy"] == "no-referrer"


async def test_the_page_has_nothing_inline(api: Api) -> None:
    page = (await api.http.get("/")).text
    assert not re.search(r"<style|\bstyle=|\bon\w+=|<script(?![^>]*\bsrc=)|https?://", page)
    script = (await api.http.get("/static/app.js")).text
    assert "innerHTML" not in script


async def test_openapi_lists_the_routes_to_who_has_the_token(api: Api) -> None:
    answer = await api.http.get("/openapi.json")
    assert {"/sessions", "/invoke", "/sessions/{sid}/events"} <= answer.json()["paths"].keys()
