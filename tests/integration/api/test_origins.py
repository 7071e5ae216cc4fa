"""Other people's pages: a foreign name that leads here, another origin, another port."""

from __future__ import annotations

import pytest
from pydantic import ValidationError
from starlette.datastructures import Headers

from api.allowed import same_origin
from api.hosts import Hosts
from api.settings import Settings
from tests.support.api.database import NewDatabase
from tests.support.api.fault_injector import FaultInjector
from tests.support.api.serving import (
    TOKEN,
    Api,
    assert_error,
    client_of,
    make_settings,
    serve_api,
    served,
)
from tests.support.names import env_name
from tests.support.services import SeaweedFS

OURS = ("localhost", "localhost:8000", "LOCALHOST:1", "127.0.0.1", "127.0.0.1:9000", "127.8.8.8")
FOREIGN = (
    "evil.example",
    "evil.example:8000",
    "localhost.evil.example",
    "127.0.0.1.evil.example",
    "localhost:8000@evil.example",
    "localhost:8000:8000",
    "localhost:",
    "local host",
    "10.0.0.1",
    "0.0.0.0",
    "[::]",
    "[fe80::1]:8000",
    "",
    "x" * 300,
)


async def nobody(*_: object) -> None:
    raise AssertionError("not asked")


def test_loopback_and_what_was_set_are_ours_and_nothing_else() -> None:
    hosts = Hosts(nobody, "192.0.2.7", "box.example, Other.example:8443,[2001:db8::1]")
    more = ("192.0.2.7:8000", "box.example", "BOX.example:1", "other.example:8443")
    for name in (*OURS, "[::1]:8000", "[2001:db8::1]:443", *more):
        assert hosts.allows(name), name
    for name in (*FOREIGN, "other.example", "other.example:80", "192.0.2.8", "[2001:db8::2]"):
        assert not hosts.allows(name), name


def test_an_api_that_listens_everywhere_answers_to_loopback_alone_until_told_more() -> None:
    for bound in ("0.0.0.0", "::"):
        hosts = Hosts(nobody, bound, "")
        assert hosts.allows("127.0.0.1:8000")
        assert not hosts.allows("0.0.0.0:8000")
        assert not hosts.allows("box.example")


async def test_a_foreign_name_is_refused_before_the_token_is_looked_at(api: Api) -> None:
    for host in FOREIGN:
        if host == "" or " " in host:
            continue  # no client sends these
        for path in ("/healthz", "/", "/sessions"):
            answer = await api.http.get(path, headers={"Host": host})
            error = assert_error(answer, 421, "host_not_allowed")
            assert env_name(Settings, "allowed_hosts") in error["hint"]
        link = await api.http.get("/", params={"token": TOKEN}, headers={"Host": host})
        assert link.status_code == 421
        assert "set-cookie" not in link.headers
    port = api.url.rpartition(":")[2]
    for host in (f"localhost:{port}", f"127.0.0.1:{port}", f"[::1]:{port}", "localhost:1"):
        assert (await api.http.get("/healthz", headers={"Host": host})).status_code == 200


async def test_a_name_that_was_set_is_answered_to(
    new_database: NewDatabase, store_service: SeaweedFS
) -> None:
    injector = FaultInjector()
    async with served(injector.app()) as sidecar_url:
        settings = make_settings(
            await new_database(), store_service, sidecar_url, allowed_hosts="api,box.example:8443"
        )
        async with serve_api(settings, injector) as api:
            for host, status in (
                ("api:8000", 200),
                ("box.example:8443", 200),
                ("box.example", 421),
                ("box.example:80", 421),
            ):
                answer = await api.http.get("/me", headers={"Host": host})
                assert answer.status_code == status, host


def test_what_is_no_host_is_refused_at_the_start(store_service: SeaweedFS) -> None:
    for wrong in ("http://box.example", "box example", "*.example", "a,b/c"):
        with pytest.raises(ValidationError, match="is no host"):
            make_settings("postgresql:///x", store_service, "http://x", allowed_hosts=wrong)


HOST = "127.0.0.1:8000"
SAME: tuple[dict[str, str], ...] = (
    {"origin": f"http://{HOST}"},
    {"origin": f"https://{HOST}"},
    {"sec-fetch-site": "same-origin"},
)
OTHER: tuple[dict[str, str], ...] = (
    {},
    {"origin": "null"},
    {"origin": ""},
    {"origin": "http://127.0.0.1:1"},
    {"origin": "http://127.0.0.1"},
    {"origin": "http://localhost:8000"},
    {"origin": f"ftp://{HOST}"},
    {"origin": HOST},
    {"origin": f"http://{HOST}.evil.example"},
    {"origin": f"http://{HOST}/"},
    {"origin": f"http://evil.example/://{HOST}"},
    {"sec-fetch-site": "none"},
    {"sec-fetch-site": "same-site"},
    {"sec-fetch-site": "cross-site"},
    {"origin": f"http://{HOST}", "sec-fetch-site": "cross-site"},
    {"origin": "null", "sec-fetch-site": "same-origin"},
)


def test_our_own_page_is_told_from_every_other() -> None:
    for headers in SAME:
        assert same_origin(Headers({"host": HOST, **headers})), headers
    for headers in OTHER:
        assert not same_origin(Headers({"host": HOST, **headers})), headers


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Origin": "null"},
        {"Origin": "http://127.0.0.1:1"},
        {"Sec-Fetch-Site": "same-site"},
        {"Sec-Fetch-Site": "cross-site"},
    ],
)
async def test_a_page_of_another_origin_cannot_write_with_the_cookie(
    api: Api, headers: dict[str, str]
) -> None:
    async with client_of(api, None) as browser:
        await browser.get("/", params={"token": TOKEN})
        before = len((await browser.get("/sessions", params={"limit": 200})).json()["sessions"])
        for method, path in (
            ("POST", "/sessions"),
            ("PATCH", "/sessions/x"),
            ("PUT", "/sessions/x/files/a"),
            ("DELETE", "/tokens/x"),
        ):
            answer = await browser.request(method, path, headers=headers, content=b"{}")
            assert_error(answer, 403, "cross_origin")
        after = await browser.get("/sessions", params={"limit": 200}, headers=headers)
        assert len(after.json()["sessions"]) == before


async def test_our_own_page_and_a_bearer_from_anywhere_can_write(api: Api) -> None:
    async with client_of(api, None) as browser:
        await browser.get("/", params={"token": TOKEN})
        same = await browser.post("/sessions", json={}, headers={"Origin": api.url})
        assert same.status_code == 201
    foreign = {"Origin": "http://elsewhere.example", "Sec-Fetch-Site": "cross-site"}
    assert (await api.http.post("/sessions", json={}, headers=foreign)).status_code == 201


async def test_no_answer_lets_another_origin_read_it(api: Api) -> None:
    asked = {
        "Origin": "http://elsewhere.example",
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "authorization",
    }
    async with client_of(api, None) as page:
        for path in ("/healthz", "/sessions", "/me", "/"):
            preflight = await page.options(path, headers=asked)
            assert preflight.status_code == 401
            for answer in (preflight, await api.http.get(path, headers=asked)):
                found = [name for name in answer.headers if name.startswith("access-control")]
                assert found == []
    assert (await api.http.options("/sessions", headers=asked)).status_code == 405
