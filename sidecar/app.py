"""The sidecar's HTTP application: wires the parts together and renders errors."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import AsyncIterator
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import SecretStr
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware

from contracts.errors import (
    HoldfastError,
    InvalidInput,
    NotFound,
    StoreUnavailable,
)
from contracts.logs import Traced
from contracts.redaction import Redactor, secrets_of
from sidecar import routes, wiring
from sidecar.api_only import ApiOnly
from sidecar.box_host import box_host
from sidecar.runs.bounds import Bounds
from sidecar.runs.engine import Rules, Runs
from sidecar.runs.gateway import Gateway
from sidecar.runs.live import LiveSandboxes
from sidecar.runs.quota import Quota
from sidecar.runs.sandboxes import Providers, Sandboxes, Warmth
from sidecar.runs.states import States
from sidecar.settings import Settings
from sidecar.workspace.choice import choose
from sidecar.workspace.fencing import Fence
from sidecar.workspace.iam import SessionKeys
from sidecar.workspace.in_box import Parts
from sidecar.workspace.manifest import Manifests
from sidecar.workspace.store import Store, StoreAddress

log = logging.getLogger(__name__)


def create_app(settings: Settings, redactor: Redactor | None = None) -> FastAPI:
    """`redactor` learns the secrets that are made as it runs."""
    known = redactor or Redactor(secrets_of(settings))
    if settings.boxhost is None:
        choose(settings.workspace, settings.geesefs)  # fail before anything is started

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        address = StoreAddress(
            endpoint=settings.s3_endpoint,
            access_key=settings.s3_access_key.get_secret_value(),
            secret_key=settings.s3_secret_key.get_secret_value(),
            bucket=settings.s3_bucket,
        )
        gateway = Gateway(settings.gateway_control)
        async with (
            Store.open(address) as store,
            SessionKeys.open(address, known) as keys,
            contextlib.aclosing(gateway),
            box_host(settings) as host,
        ):
            await host.boxes.thaw_all()  # a sidecar that died in a barrier left its box frozen
            state = store.in_bucket(settings.s3_state_bucket)
            manifests = Manifests(state)
            parts = Parts(store, manifests, Fence(host.mounts, keys), address)
            async with (
                wiring.providers(settings, host, parts, keys) as providers,
                running(settings, providers, gateway, States(state), known) as runs,
            ):
                app.state.runs = runs
                app.state.manifests = manifests
                yield

    app = FastAPI(
        title="Holdfast sidecar",
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        middleware=[Middleware(ApiOnly, secret=settings.sidecar_secret)],
    )
    app.state.settings = settings
    app.add_middleware(Traced)
    app.include_router(routes.open_router)
    app.include_router(routes.router)
    _render_errors(app)
    return app


@contextlib.asynccontextmanager
async def running(
    settings: Settings,
    providers: Providers,
    gateway: Gateway,
    states: States,
    redactor: Redactor,
) -> AsyncIterator[Runs]:
    """The turns, and the sandboxes that they run in."""
    for provider in providers.usual.values():
        try:
            await provider.sweep()
        except StoreUnavailable as error:
            log.warning("keys of mounts that are gone are not revoked yet: %s", error)
    sandboxes = Sandboxes(
        providers,
        gateway,
        LiveSandboxes(settings.data_dir),
        Warmth(settings.warm_seconds, settings.warm_sandboxes),
    )
    models = {"anthropic": settings.anthropic_model, "openai": settings.openai_model}
    rules = Rules(
        bounds=Bounds(
            events_per_second=settings.events_per_second,
            event_bytes=settings.event_bytes,
            turn_events=settings.turn_events,
            turn_bytes=settings.turn_bytes,
            turn_seconds=settings.turn_seconds,
        ),
        quota=Quota(bytes=settings.session_bytes, files=settings.session_files),
        redactor=redactor,
        gateway_secret=(settings.gateway_secret or SecretStr("")).get_secret_value().encode(),
    )
    async with Runs.open(settings.data_dir, sandboxes, states, models, rules) as runs:
        yield runs


def _render_errors(app: FastAPI) -> None:
    def body(error: HoldfastError) -> dict[str, Any]:
        return {"error": error.body()}

    @app.exception_handler(HoldfastError)
    async def holdfast(_: Request, error: HoldfastError) -> JSONResponse:
        return JSONResponse(body(error), status_code=error.status)

    @app.exception_handler(RequestValidationError)
    async def invalid(_: Request, error: RequestValidationError) -> JSONResponse:
        first = error.errors()[0]
        place = ".".join(str(step) for step in first["loc"])
        return JSONResponse(body(InvalidInput(f"{place}: {first['msg']}")), status_code=400)

    @app.exception_handler(HTTPException)
    async def http(_: Request, error: HTTPException) -> JSONResponse:
        return JSONResponse(body(NotFound(str(error.detail))), status_code=error.status_code)
