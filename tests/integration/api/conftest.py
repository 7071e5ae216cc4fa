"""A real PostgreSQL once a run, whose databases are copies of a template; the api served."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.api.backing import busy as busy
from tests.support.api.backing import empty as empty
from tests.support.api.fault_injector import FaultInjector
from tests.support.api.serving import Api, make_settings, serve_api, served
from tests.support.s3 import open_s3
from tests.support.services import SeaweedFS

if TYPE_CHECKING:
    from types_aiobotocore_s3.client import S3Client

TEMPLATE = "holdfast_template"
NewDatabase = Callable[[], Coroutine[Any, Any, str]]


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
    async with open_s3(store_service) as client:
        yield client
