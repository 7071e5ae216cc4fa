"""S3 clients of the tests, other than those of the product."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

import aioboto3

from tests.support.services import SeaweedFS

if TYPE_CHECKING:
    from types_aiobotocore_s3.client import S3Client


@functools.cache
def load_session() -> aioboto3.Session:
    """One session for all clients: it keeps the service models, which take long to load."""
    return aioboto3.Session(region_name="us-east-1")


@contextlib.asynccontextmanager
async def open_s3(store: SeaweedFS) -> AsyncIterator[S3Client]:
    async with load_session().client(
        "s3",
        endpoint_url=store.endpoint,
        aws_access_key_id=store.access_key,
        aws_secret_access_key=store.secret_key,
    ) as client:
        yield client
