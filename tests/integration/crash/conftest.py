from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

import pytest

from tests.support.api.backing import busy as busy
from tests.support.api.backing import empty as empty
from tests.support.s3 import open_s3
from tests.support.services import SeaweedFS

if TYPE_CHECKING:
    from types_aiobotocore_s3.client import S3Client


@pytest.fixture(scope="module")
async def s3(store_service: SeaweedFS) -> AsyncIterator[S3Client]:
    async with open_s3(store_service) as client:
        yield client
