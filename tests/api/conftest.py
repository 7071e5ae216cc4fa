"""A real PostgreSQL once a run, whose databases are copies of a template; the api served."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine
from typing import TYPE_CHECKING, Any

import aioboto3
import asyncpg
import pytest
from uuid_utils.compat import uuid7

from api.db.migrate import migrate
from api.db.pool import Database, open_database
from tests.api.backing import busy as busy
from tests.api.backing import empty as empty
from tests.api.fault_injector import FaultInjector
from tests.api.serving import Api, make_settings, serve_api, served
from tests.services import Postgres, SeaweedFS, postgres, short_directory

if TYPE_CHECKING:
    from types_aiobotocore_s3.client import S3Client

TEMPLATE = "holdfast_template"
NewDatabase = Callable[[], Coroutine[Any, Any, str]]


@pytest.fixture(scope="session")
async def postgres_server() -> AsyncIterator[Postgres]:
    with short_directory() as directory:
        async with postgres(directory) as server:
            yield server


@pytest.fixture(scope="session")
async def new_database(postgres_server: Postgres) -> NewDatabase:
    """Makes a migrated database and returns its url."""

    async def execute(sql: str) -> None:
        conn = await asyncpg.connect(postgres_server.url())
        try:
            await conn.execute(sql)
        finally:
            await conn.close()

    await execute(f"CREATE DATABASE {TEMPLATE}")
    async with (
        open_database(postgres_server.url(TEMPLATE)) as template,
        template.connection() as conn,
    ):
        await migrate(conn)

    async def make() -> str:
        name = f"test_{uuid7().hex}"
        await execute(f"CREATE DATABASE {name} TEMPLATE {TEMPLATE}")
        return postgres_server.url(name)

    return make


@pytest.fixture
async def database(new_database: NewDatabase) -> AsyncIterator[Database]:
    async with open_database(await new_database()) as opened:
        yield opened


@pytest.fixture(scope="module")
async def api(new_database: NewDatabase, store_service: SeaweedFS) -> AsyncIterator[Api]:
    """The api on a database of this module's own, with the fault injector for a sidecar."""
    injector = FaultInjector()
    async with served(injector.app()) as sidecar_url:
        settings = make_settings(await new_database(), store_service, sidecar_url)
        async with serve_api(settings, injector) as running:
            yield running


@pytest.fixture(scope="module")
async def s3(api: Api, store_service: SeaweedFS) -> AsyncIterator[S3Client]:
    """Another client than the api's own."""
    session = aioboto3.Session(
        aws_access_key_id=store_service.access_key,
        aws_secret_access_key=store_service.secret_key,
        region_name="us-east-1",
    )
    async with session.client("s3", endpoint_url=store_service.endpoint) as client:
        yield client
