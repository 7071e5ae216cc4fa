"""A revoked key is tried: a store that lists no user any more may still take its key."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any
from uuid import uuid4

import aiohttp
import pytest
from aiohttp import web

from contracts.errors import MountFailed
from contracts.redaction import Redactor
from sidecar.workspace.iam import SessionKeys
from sidecar.workspace.store import StoreAddress


class ForgetfulIam:
    """The part of an IAM API that is asked; who is deleted is not listed any more."""

    def __init__(self) -> None:
        self.users: list[str] = []

    async def create_policy(self, **_: str) -> None: ...

    async def create_user(self, *, UserName: str) -> None:
        self.users.append(UserName)

    async def attach_user_policy(self, **_: str) -> None: ...

    async def create_access_key(self, *, UserName: str) -> dict[str, Any]:
        return {"AccessKey": {"AccessKeyId": f"key-{UserName}", "SecretAccessKey": "secret"}}

    async def delete_user(self, *, UserName: str) -> None:
        self.users.remove(UserName)

    async def delete_policy(self, **_: str) -> None: ...

    def get_paginator(self, call: str) -> Any:
        assert call == "list_users"
        return self

    async def paginate(self) -> AsyncIterator[dict[str, Any]]:
        yield {"Users": [{"UserName": user} for user in self.users]}


@contextlib.asynccontextmanager
async def store_that_answers(status: int) -> AsyncIterator[tuple[SessionKeys, list[str]]]:
    """Keys of a store, and by which of them it was asked."""
    asked: list[str] = []

    async def answer(request: web.Request) -> web.Response:
        asked.append(request.headers["Authorization"])
        return web.Response(status=status)

    app = web.Application()
    app.router.add_get("/sessions", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    assert site._server is not None
    port = site._server.sockets[0].getsockname()[1]  # type: ignore[attr-defined]
    address = StoreAddress(f"http://127.0.0.1:{port}", "admin", "secret", "sessions")
    try:
        async with aiohttp.ClientSession() as http:
            yield SessionKeys(ForgetfulIam(), http, address, Redactor()), asked
    finally:
        await runner.cleanup()


@pytest.mark.parametrize("status", [200, 301, 404, 500])
async def test_a_key_that_is_not_refused_is_not_revoked(status: int) -> None:
    session = str(uuid4())
    async with store_that_answers(status) as (keys, asked):
        key = await keys.grant(session, "host")
        with pytest.raises(MountFailed):
            await keys.revoke(session)
    assert key.access_key in asked[0]


async def test_a_key_that_is_refused_is_revoked() -> None:
    session = str(uuid4())
    async with store_that_answers(403) as (keys, asked):
        await keys.grant(session, "host")
        assert await keys.revoke(session) == 1
        assert await keys.revoke(session) == 0
    assert len(asked) == 1
