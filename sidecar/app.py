"""The sidecar's HTTP application: wires the parts together and renders errors."""

from __future__ import annotations

import contextlib
import hmac
import logging
from collections.abc import AsyncIterator
from typing import Any

from fastapi import Depends, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from contracts.errors import (
    HoldfastError,
    InvalidInput,
    NotFound,
    StoreUnavailable,
    Unauthenticated,
)
from sidecar import routes
from sidecar.boxhost.boxes import Boxes
from sidecar.boxhost.mounts import Mounts
from sidecar.providers.local import LocalProvider
from sidecar.runs.engine import Runs
from sidecar.runs.gateway import Gateway
from sidecar.runs.live import LiveSandboxes
from sidecar.runs.sandboxes import Sandboxes, Warmth
from sidecar.runs.states import States
from sidecar.settings import Settings
from sidecar.workspace.choice import EngineChoice, choose
from sidecar.workspace.geesefs import Geesefs, with_geesefs
from sidecar.workspace.host_mounted import HostMounted
from sidecar.workspace.iam import SessionKeys
from sidecar.workspace.manifest import Manifests
from sidecar.workspace.store import Store, StoreAddress
from sidecar.workspace.weed import Weed, with_weed

log = logging.getLogger(__name__)


def create_app(settings: Settings) -> FastAPI:
    engine = choose(settings.workspace, settings.geesefs)
    log.info("workspace engine: %s (%s)", engine.name, engine.why)

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
            SessionKeys.open(address) as keys,
            contextlib.aclosing(gateway),
        ):
            local = _local(settings, engine, address, store, keys)
            try:
                await local.sweep()
            except StoreUnavailable as error:
                log.warning("keys of mounts that are gone are not revoked yet: %s", error)
            sandboxes = Sandboxes(
                {"local": local},
                engine,
                gateway,
                LiveSandboxes(settings.data_dir),
                Warmth(settings.warm_seconds, settings.warm_sandboxes),
            )
            models = {"anthropic": settings.anthropic_model, "openai": settings.openai_model}
            states = States(store.in_bucket(settings.s3_state_bucket))
            async with Runs.open(settings.data_dir, sandboxes, states, models) as runs:
                app.state.runs = runs
                yield

    async def authenticate(request: Request) -> None:
        given = request.headers.get("authorization", "")
        wanted = f"Bearer {settings.sidecar_secret.get_secret_value()}"
        if not hmac.compare_digest(given.encode(), wanted.encode()):
            raise Unauthenticated("the sidecar answers its api only")

    app = FastAPI(title="Holdfast sidecar", lifespan=lifespan, docs_url=None, redoc_url=None)
    app.state.settings = settings
    app.include_router(routes.open_router)
    app.include_router(routes.router, dependencies=[Depends(authenticate)])
    _render_errors(app)
    return app


def _local(
    settings: Settings,
    engine: EngineChoice,
    address: StoreAddress,
    store: Store,
    keys: SessionKeys,
) -> HostMounted:
    data, run = settings.data_dir, settings.run_dir
    mounts = Mounts(data)
    manifests = Manifests(store.in_bucket(settings.s3_state_bucket))
    boxes = Boxes(data, run, settings.bwrap)
    boxes.thaw_all()  # a sidecar that died in a barrier left its box frozen
    provider = LocalProvider(
        boxes,
        {
            "/opt/harness": settings.harness_dir,
            "/opt/node/bin/node": settings.node.resolve(),
        },
    )
    if engine.name == "geesefs":
        assert settings.geesefs is not None
        geesefs = Geesefs(settings.geesefs, address)
        return with_geesefs(provider, geesefs, mounts, store, manifests, keys)
    weed = Weed(settings.weed, settings.filer, settings.s3_bucket, data / "cache", run / "weed")
    return with_weed(provider, weed, mounts, store, manifests, keys)


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
