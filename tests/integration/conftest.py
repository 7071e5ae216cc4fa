"""PostgreSQL and SeaweedFS, once for each process that runs tests."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

import aioboto3
import asyncpg
import pytest
from uuid_utils.compat import uuid7

from api.db.migrate import migrate
from api.db.pool import Database, open_database
from sidecar.workspace.store import Store, StoreAddress
from tests.support.api.database import NewDatabase
from tests.support.services import (
    STATE_BUCKET,
    Postgres,
    SeaweedFS,
    postgres,
    seaweedfs,
    short_directory,
)

TEMPLATE = "holdfast_template"


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


@pytest.fixture(scope="session")
async def store_service() -> AsyncIterator[SeaweedFS]:
    with short_directory() as path:
        async with seaweedfs(path) as service:
            yield service


@pytest.fixture(scope="session")
async def address(store_service: SeaweedFS) -> StoreAddress:
    """The store's workspaces; other buckets are beside them, which the tests share."""
    found = StoreAddress(
        store_service.endpoint, store_service.access_key, store_service.secret_key, "workspaces"
    )
    async with aioboto3.Session().client(
        "s3",
        endpoint_url=found.endpoint,
        aws_access_key_id=found.access_key,
        aws_secret_access_key=found.secret_key,
        region_name="us-east-1",
    ) as s3:
        for bucket in (found.bucket, "elsewhere", STATE_BUCKET):
            with contextlib.suppress(s3.exceptions.BucketAlreadyOwnedByYou):
                await s3.create_bucket(Bucket=bucket)
    return found


@pytest.fixture
async def store(address: StoreAddress) -> AsyncIterator[Store]:
    async with Store.open(address) as opened:
        yield opened
