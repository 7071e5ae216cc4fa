"""Cookies, named tokens, and the end of both."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
from pydantic import SecretStr

from api.auth import Caller, cookie_name
from api.owner import OwnerToken
from tests.support.api import rows
from tests.support.api.database import NewDatabase
from tests.support.api.fault_injector import FaultInjector
from tests.support.api.serving import (
    TOKEN,
    Api,
    assert_error,
    client_of,
    make_settings,
    new_token,
    serve_api,
    served,
)
from tests.support.services import SeaweedFS


async def login(browser: httpx.AsyncClient, token: str) -> httpx.Response:
    return await browser.get("/", params={"token": token})


async def rest_of(lines: AsyncIterator[str]) -> list[str]:
    async with asyncio.timeout(20):
        return [line async for line in lines]


@pytest.fixture(params=["owner", "named"])
async def token(request: pytest.FixtureRequest, api: Api) -> AsyncIterator[str]:
    """The stack's own, and one that was made."""
    if request.param == "owner":
        yield TOKEN
        return
    made = await new_token(api, "someone", "admin")
    yield made
    await api.http.delete("/tokens/someone")


async def test_the_login_link_sets_a_cookie_that_is_not_the_token(api: Api, token: str) -> None:
    async with client_of(api, None) as browser:
        answer = await login(browser, token)
        assert (answer.status_code, answer.headers["location"]) == (303, "/")
        cookie = answer.headers["set-cookie"].lower()
        assert cookie.startswith(f"{cookie_name(api.settings.sidecar_secret)}=")
        assert "httponly" in cookie
        assert "samesite=strict" in cookie
        assert "domain" not in cookie
        assert token not in answer.headers["set-cookie"]
        page = await browser.get("/")
        assert page.status_code == 200
        assert "<title>Holdfast</title>" in page.text
        for name in ("app.js", "css/base.css"):
            assert (await browser.get(f"/static/{name}")).status_code == 200
        assert (await browser.get("/sessions")).status_code == 200


async def test_the_cookie_is_no_token_and_the_token_no_cookie(api: Api, token: str) -> None:
    name = cookie_name(api.settings.sidecar_secret)
    async with client_of(api, None) as browser:
        await login(browser, token)
        cookie = browser.cookies[name]
    async with client_of(api, cookie) as program:
        assert_error(await program.get("/me"), 401, "unauthenticated")
    async with client_of(api, None) as browser:
        answer = await login(browser, cookie)
        assert_error(answer, 401, "unauthenticated")
        answer = await browser.get("/me", headers={"Cookie": f"{name}={token}"})
        assert_error(answer, 401, "unauthenticated")


async def test_a_revoked_token_ends_with_its_logins_and_no_other(api: Api) -> None:
    mine, other = await new_token(api, "mine", "run"), await new_token(api, "other", "run")
    async with (
        client_of(api, mine) as program,
        client_of(api, None) as browser,
        client_of(api, None) as others,
    ):
        await login(browser, mine)
        await login(others, other)
        for client in (program, browser, others):
            assert (await client.get("/sessions")).status_code == 200
        assert (await api.http.delete("/tokens/mine")).json()["name"] == "mine"
        for client in (program, browser):
            assert_error(await client.get("/sessions"), 401, "unauthenticated")
        assert_error(await login(browser, mine), 401, "unauthenticated")
        assert (await others.get("/me")).json()["name"] == "other"
        # another one of the same name is another one
        await new_token(api, "mine", "run")
        assert_error(await browser.get("/sessions"), 401, "unauthenticated")


@pytest.mark.parametrize("by", ["bearer", "cookie"])
async def test_a_stream_ends_with_the_token_that_opened_it(
    api: Api, monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    monkeypatch.setattr("api.auth.AGAIN_AFTER", 0.0)
    monkeypatch.setattr("api.follow.HEARTBEAT", 0.02)
    session = await api.new_session()
    token = await new_token(api, f"follows-{by}", "read")
    async with client_of(api, token if by == "bearer" else None) as follower:
        if by == "cookie":
            await login(follower, token)
        path = f"/sessions/{session.id}/events"
        async with follower.stream("GET", path, params={"follow": True}) as stream:
            beats = stream.aiter_lines()
            for _ in range(3):
                assert await anext(beats) == ""
            await api.http.delete(f"/tokens/follows-{by}")
            with pytest.raises(httpx.RemoteProtocolError):
                await rest_of(beats)
        assert_error(await follower.get(path), 401, "unauthenticated")


async def test_only_hashes_are_stored_and_the_list_does_not_tell_a_token(api: Api) -> None:
    token = await new_token(api, "hidden", "read")
    async with client_of(api, None) as browser:
        await login(browser, token)
        (cookie,) = browser.cookies.values()
    async with rows.connect(api.settings) as conn:
        found = [*await rows.dump_rows(conn, "tokens"), *await rows.dump_rows(conn, "audit")]
    stored = "\n".join(found)
    assert "hidden" in stored
    listed = await api.http.get("/tokens")
    for secret in (token, cookie, token.encode().hex(), cookie.encode().hex()):
        assert secret not in stored
        assert secret not in listed.text
    (mine,) = [each for each in listed.json()["tokens"] if each["name"] == "hidden"]
    assert mine.keys() == {"name", "role", "created_at", "created_by"}
    assert (mine["role"], mine["created_by"]) == ("read", "owner")


async def test_a_name_is_taken_once_and_some_are_nobodys(api: Api) -> None:
    await new_token(api, "once", "read")
    answer = await api.http.post("/tokens", json={"name": "once", "role": "admin"})
    assert_error(answer, 409, "token_exists")
    for name in ("owner", "page", "auto", "", "Big", "a b", "-a", "a" * 33, "a\n"):
        answer = await api.http.post("/tokens", json={"name": name, "role": "read"})
        assert_error(answer, 400, "invalid_input")
    answer = await api.http.post("/tokens", json={"name": "king", "role": "root"})
    assert_error(answer, 400, "invalid_input")
    for name in ("nobody", "owner"):
        assert_error(await api.http.delete(f"/tokens/{name}"), 404, "token_not_found")
    assert_error(await api.http.delete("/tokens/%00"), 400, "invalid_input")


@contextlib.asynccontextmanager
async def kept_in(
    file: Path, new_database: NewDatabase, store: SeaweedFS, secret: str | None = None
) -> AsyncIterator[Api]:
    """An api whose own token is in a file."""
    injector = FaultInjector()
    async with served(injector.app()) as sidecar_url:
        settings = make_settings(await new_database(), store, sidecar_url, api_token_file=file)
        if secret is not None:
            settings = settings.model_copy(update={"sidecar_secret": SecretStr(secret)})
        async with serve_api(settings, injector) as running:
            yield running


def replace(file: Path, token: str) -> None:
    draft = file.with_suffix(".new")
    draft.write_text(f"{token}\n")
    draft.replace(file)


async def test_a_rotated_token_counts_from_the_next_request_on(
    tmp_path: Path, new_database: NewDatabase, store_service: SeaweedFS
) -> None:
    file = tmp_path / "token"
    replace(file, TOKEN)
    async with kept_in(file, new_database, store_service) as api:
        named = await new_token(api, "stays", "run")
        async with client_of(api, None) as browser, client_of(api, None) as others:
            await login(browser, TOKEN)
            await login(others, named)
            for round_number in range(3):
                fresh = f"another-token-number-{round_number}"
                replace(file, fresh)
                assert_error(await api.http.get("/me"), 401, "unauthenticated")
                assert_error(await browser.get("/me"), 401, "unauthenticated")
                assert_error(await login(browser, TOKEN), 401, "unauthenticated")
                async with client_of(api, fresh) as owner:
                    assert (await owner.get("/me")).json()["name"] == "owner"
                await login(browser, fresh)
                assert (await browser.get("/me")).status_code == 200
                # whoever has a token of their own does not notice
                assert (await others.get("/me")).json()["name"] == "stays"


@pytest.mark.parametrize("content", [None, "", "\n", "short"])
async def test_a_file_without_a_token_lets_nobody_in(
    tmp_path: Path, new_database: NewDatabase, store_service: SeaweedFS, content: str | None
) -> None:
    file = tmp_path / "token"
    replace(file, TOKEN)
    async with kept_in(file, new_database, store_service) as api:
        async with client_of(api, None) as browser:
            await login(browser, TOKEN)
            if content is None:
                file.unlink()
            else:
                replace(file, content)
            for given in (TOKEN, content or "", "x"):
                headers = {"Authorization": f"Bearer {given}".strip()}
                answer = await browser.get("/me", headers=headers)
                assert_error(answer, 401, "unauthenticated")
            assert_error(await browser.get("/me"), 401, "unauthenticated")
        replace(file, TOKEN)
        assert (await api.http.get("/me")).status_code == 200


async def test_two_stacks_on_one_host_keep_both_logins_of_one_browser(
    api: Api, tmp_path: Path, new_database: NewDatabase, store_service: SeaweedFS
) -> None:
    """A browser sends a cookie to every port of its host."""
    file = tmp_path / "token"
    replace(file, "the-token-of-another-stack")
    async with kept_in(file, new_database, store_service, secret="of another stack") as second:
        jar: dict[str, str] = {}
        for running, token in ((api, TOKEN), (second, "the-token-of-another-stack")):
            async with client_of(running, None) as browser:
                await login(browser, token)
                jar.update(browser.cookies)
        assert len(jar) == 2
        sent = {"Cookie": "; ".join(f"{name}={value}" for name, value in jar.items())}
        for running in (api, second):
            async with client_of(running, None) as browser:
                assert (await browser.get("/me", headers=sent)).status_code == 200


def test_a_token_that_was_given_does_not_change(tmp_path: Path) -> None:
    owner = OwnerToken(SecretStr(TOKEN), None)
    assert owner.is_token(TOKEN.encode())
    assert not owner.is_token(b"")
    assert not OwnerToken(None, tmp_path / "missing").is_token(b"")


def test_an_answer_to_a_permission_says_whose_token_gave_it() -> None:
    """As the transcript has it: the owner by what was used, others by their name before that."""
    for name, client, by in (
        ("owner", "page", "page"),
        ("owner", "cli", "cli"),
        ("ci", "cli", "ci/cli"),
        ("ci", "page", "ci/page"),
        ("ci", "token", "ci"),
    ):
        assert Caller(name, "run", client, by_cookie=False).by == by
