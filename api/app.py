"""The application: what it opens, what surrounds it, what it serves."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import AsyncIterator
from dataclasses import replace
from functools import partial

from fastapi import FastAPI
from starlette.middleware import Middleware

from api import errors, openapi
from api.allowed import Allowed
from api.audit import Audit, Audited
from api.auth import Login, cookie_name
from api.carrier import Carrier
from api.db.migrate import migrate
from api.db.notify import Listener
from api.db.pool import Database, open_database
from api.edits import Edits
from api.errors import StrictJSONResponse
from api.followers import Followers
from api.hosts import Hosts
from api.ledger import Ledger
from api.matrix import Matrix
from api.metrics import Metrics
from api.middleware import BodyLimit, Surround
from api.owner import OwnerToken
from api.permissions import Permissions
from api.pump import Limits
from api.quota import Quotas
from api.routes import (
    events,
    files,
    invoke,
    matrix,
    page,
    permissions,
    sessions,
    system,
    tokens,
    turns,
)
from api.scrape import VERSION, Scrape
from api.services import Services
from api.sessions import Sessions
from api.settings import Settings
from api.sidecar import open_sidecar
from api.store import Stores, open_stores
from api.stray_runs import StrayRuns
from api.tokens import Tokens
from api.turns import Turns
from api.zipped import Archives
from contracts.errors import StoreUnavailable
from contracts.redaction import Redactor, secrets_of

log = logging.getLogger(__name__)


@contextlib.asynccontextmanager
async def open_services(
    settings: Settings, limits: Limits, metrics: Metrics, redactor: Redactor
) -> AsyncIterator[Services]:
    """Everything the routes need, in the order in which it depends on each other.

    Raises: DatabaseUnavailable, MigrationError.
    """
    async with (
        open_database(settings.database_url.get_secret_value(), metrics=metrics) as database,
        open_stores(settings) as stores,
        open_sidecar(settings, redactor) as sidecar,
    ):
        await _prepare(database, stores)
        listener = Listener(database)
        carrier = Carrier(database, sidecar, listener, limits)
        quotas = Quotas(stores, settings.session_bytes, settings.session_files)
        turns = Turns(
            database,
            sidecar,
            listener,
            carrier,
            quotas,
            settings.prompt_chars,
            limits.max_queued,
        )
        ledger = Ledger(database, sidecar, limits.reconcile_every)
        matrix_runs = Matrix(database, sidecar, settings)
        audit = Audit(database, settings.audit_days, settings.audit_rows, limits.record_within)
        async with (
            listener.serve(),
            carrier.serve(),
            ledger.serve(),
            StrayRuns(database, sidecar, limits.reconcile_every).serve(),
            matrix_runs.serve(),
            audit.serve(),
        ):
            sessions = Sessions(database, stores, sidecar, turns, carrier, settings)
            yield Services(
                database=database,
                stores=stores,
                sidecar=sidecar,
                listener=listener,
                ledger=ledger,
                turns=turns,
                sessions=sessions,
                matrix=matrix_runs,
                edits=Edits(stores, sidecar, settings.upload_bytes, quotas, sessions.check_kept),
                followers=Followers(settings.followers),
                archives=Archives(settings.zip_bytes, settings.zip_files),
                permissions=Permissions(database, settings.permission_seconds),
                tokens=Tokens(database),
                audit=audit,
                scrape=Scrape(metrics, database, stores, sidecar, ledger, limits.boxes_seconds),
            )


async def _prepare(database: Database, stores: Stores) -> None:
    async with database.connection() as conn:
        for name in await migrate(conn):
            log.info("migrated the database: %s", name)
    try:
        await stores.check()
    except StoreUnavailable as error:
        # /readyz tells, and tries again; the transcript can be read meanwhile
        log.warning("%s", error.message)


def create_app(
    settings: Settings, limits: Limits | None = None, redactor: Redactor | None = None
) -> FastAPI:
    """The api with these settings; nothing is opened before its lifespan starts. `redactor` learns
    the token, which may be replaced as it runs."""
    metrics = Metrics()
    known = redactor or Redactor(secrets_of(settings))
    owner = OwnerToken.of(settings, known)
    owner.current()

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        lasts = settings.permission_seconds
        bounds = replace(limits or Limits(), permission_seconds=lasts)
        async with open_services(settings, bounds, metrics, known) as services:
            app.state.services = services
            yield

    app = FastAPI(
        title="Holdfast",
        description="Durable coding-agent sessions: sessions, turns, transcript and files.",
        version=VERSION,
        lifespan=lifespan,
        default_response_class=StrictJSONResponse,
        # Swagger's page needs scripts of another host; /openapi.json has all of it
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        middleware=[
            Middleware(Surround, metrics=metrics),
            Middleware(Hosts, bound=settings.api_host, more=settings.allowed_hosts),
            Middleware(
                Login,
                owner=owner,
                cookie=cookie_name(settings.sidecar_secret),
            ),
            Middleware(Audited),
            Middleware(Allowed),
            Middleware(BodyLimit, bodies=settings.body_bytes, uploads=settings.upload_bytes),
        ],
    )
    errors.install(app)
    routes = (sessions, turns, permissions, events, files, invoke, matrix, system, tokens, page)
    for module in routes:
        app.include_router(module.router)
    app.mount("/static", page.static)
    app.openapi = partial(openapi.describe, app)  # type: ignore[method-assign]
    return app
