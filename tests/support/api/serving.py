"""The real api, served over loopback, and clients of it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import threading
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import httpx
import uvicorn

from api.__main__ import Server
from api.app import create_app
from api.db.notify import Listener
from api.pump import Limits
from api.settings import Settings
from api.unread import hanging_up_after
from contracts.bodies import Role, Session, Turn
from tests.support.api.fault_injector import SECRET, FaultInjector, FaultyRun, Plan, planned
from tests.support.services import SeaweedFS, until

TOKEN = "test-token-0123456789"
NOBODY = UUID("01a00000-0000-7000-8000-000000000000")  # of no session
# The ledger is reconciled where a test asks for it: the injector's runs have no boxes.
QUICK = Limits(
    start_within=2.0, follow_within=2.0, gap_tries=3, reconcile_every=3600.0, max_queued=12
)


def bind_port(port: int = 0) -> socket.socket:
    """Bind a loopback port without listening: connections are refused, and nobody else gets it."""
    # asyncio sets TCP_NODELAY only where the protocol is named; without it, a request takes 40 ms
    bound = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    bound.bind(("127.0.0.1", port))
    return bound


@contextlib.asynccontextmanager
async def served(
    app: Any, kind: type[uvicorn.Server] = uvicorn.Server, port: int = 0, http: Any = "auto"
) -> AsyncIterator[str]:
    """Serve an ASGI app from a thread with a loop of its own; yields its address."""
    with bind_port(port) as listener:
        config = uvicorn.Config(
            app,
            http=http,
            log_config=None,
            access_log=False,
            ws="none",
            timeout_graceful_shutdown=5,
        )
        server = kind(config)
        thread = threading.Thread(target=server.run, args=([listener],), daemon=True)
        thread.start()
        try:
            await until(lambda: server.started or not thread.is_alive(), "the server starts", 30)
            assert server.started, "the server did not start; see the log"
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            await asyncio.to_thread(thread.join, 15)
            assert not thread.is_alive()


def make_settings(database_url: str, store: SeaweedFS, sidecar_url: str, **more: Any) -> Settings:
    return Settings(
        api_token=TOKEN,
        database_url=database_url,
        sidecar_url=sidecar_url,
        sidecar_secret=SECRET,
        s3_endpoint=store.endpoint,
        s3_access_key=store.access_key,
        s3_secret_key=store.secret_key,
        **more,
    )


@dataclass
class Api:
    """A running api, the client that asks it, and the wire that it asks."""

    url: str
    http: httpx.AsyncClient
    injector: FaultInjector
    settings: Settings
    listener: Listener

    async def new_session(self, **body: Any) -> Session:
        answer = await self.http.post("/sessions", json=body)
        assert answer.status_code == 201, answer.text
        return Session.model_validate_json(answer.content)

    async def start(self, sid: UUID, prompt: str = "go", **body: Any) -> Turn:
        answer = await self.http.post(f"/sessions/{sid}/turns", json={"prompt": prompt, **body})
        assert answer.status_code == 202, answer.text
        return Turn.model_validate_json(answer.content)

    async def start_run(
        self, sid: UUID, plan: Plan, prompt: str = "go", **body: Any
    ) -> tuple[Turn, FaultyRun]:
        """Start a turn whose run is made by `plan`; returns once the api has asked for the run."""
        runs = self.injector.runs
        with planned(self.injector, plan):
            turn = await self.start(sid, prompt, **body)
            await until(lambda: turn.id in runs, "the run starts")
        return turn, runs[turn.id]

    async def turn(self, turn: Turn) -> Turn:
        answer = await self.http.get(f"/sessions/{turn.session_id}/turns/{turn.id}")
        assert answer.status_code == 200, answer.text
        return Turn.model_validate_json(answer.content)

    async def ended(self, turn: Turn, within: float = 20.0) -> Turn:
        async with asyncio.timeout(within):
            while (now := await self.turn(turn)).state in ("queued", "running"):
                await asyncio.sleep(0.02)
        return now

    async def events(self, sid: UUID, after: int = 0) -> list[dict[str, Any]]:
        answer = await self.http.get(f"/sessions/{sid}/events", params={"after": after})
        assert answer.status_code == 200, answer.text
        return [json.loads(line) for line in answer.text.splitlines()]


def client_of(api: Api, token: str | None) -> httpx.AsyncClient:
    """Another client than the owner's; without a token, a browser that has not logged in."""
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    return httpx.AsyncClient(base_url=api.url, headers=headers, timeout=30.0, trust_env=False)


async def new_token(api: Api, name: str, role: Role) -> str:
    answer = await api.http.post("/tokens", json={"name": name, "role": role})
    assert answer.status_code == 201, answer.text
    return str(answer.json()["token"])


def assert_error(answer: httpx.Response, status: int, code: str) -> dict[str, Any]:
    """The answer has the status, and the one shape that errors have."""
    assert answer.status_code == status, answer.text
    error: dict[str, Any] = answer.json()["error"]
    assert error["code"] == code
    assert error["message"]
    assert {"hint", "retryable"} <= error.keys()
    return error


@contextlib.asynccontextmanager
async def serve_api(
    settings: Settings, injector: FaultInjector, limits: Limits = QUICK, *, at_port: bool = False
) -> AsyncIterator[Api]:
    """The api on a free port, or on that of its settings, with a client that is logged in."""
    app = create_app(settings, limits)
    protocol = hanging_up_after(settings.unread_seconds)
    async with (
        served(app, Server, settings.api_port if at_port else 0, protocol) as url,
        httpx.AsyncClient(
            base_url=url,
            headers={"Authorization": f"Bearer {TOKEN}"},
            timeout=30.0,
            trust_env=False,
        ) as http,
    ):
        yield Api(url, http, injector, settings, app.state.services.listener)
