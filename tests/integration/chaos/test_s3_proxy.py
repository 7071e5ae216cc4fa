"""The fault proxy carries S3 as it is, and breaks exactly what it is told to break."""

from __future__ import annotations

import contextlib
import os
import random
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import urlsplit

import aioboto3
import pytest
from aiobotocore.config import AioConfig
from botocore.exceptions import BotoCoreError, ClientError

from tests.chaos.s3_proxy import S3Faults, S3Proxy
from tests.support.services import SeaweedFS

BUCKET = "proxied"
ONE_TRY = AioConfig(retries={"max_attempts": 0}, s3={"addressing_style": "path"})


@pytest.fixture
async def proxy(store_service: SeaweedFS) -> AsyncIterator[S3Proxy]:
    there = urlsplit(store_service.endpoint)
    made = S3Proxy(lambda: (str(there.hostname), int(there.port or 0)))
    made.faults = S3Faults(chance=random.Random(1))
    async with made.serving():
        yield made


@pytest.fixture
async def s3(proxy: S3Proxy, store_service: SeaweedFS) -> AsyncIterator[Any]:
    async with aioboto3.Session().client(
        "s3",
        endpoint_url=proxy.url,
        aws_access_key_id=store_service.access_key,
        aws_secret_access_key=store_service.secret_key,
        region_name="us-east-1",
        config=ONE_TRY,
    ) as client:
        with contextlib.suppress(client.exceptions.BucketAlreadyOwnedByYou):
            await client.create_bucket(Bucket=BUCKET)
        yield client


async def test_bytes_pass_unchanged_both_ways(proxy: S3Proxy, s3: Any) -> None:
    for size in (0, 1, 300_000, 5 << 20):
        content = os.urandom(size)
        await s3.put_object(Bucket=BUCKET, Key="k", Body=content)
        assert await (await s3.get_object(Bucket=BUCKET, Key="k"))["Body"].read() == content
        assert (await s3.head_object(Bucket=BUCKET, Key="k"))["ContentLength"] == size
    await s3.delete_object(Bucket=BUCKET, Key="k")
    assert proxy.broken == 0


async def test_a_refused_request_is_a_503_and_does_not_reach_the_store(
    proxy: S3Proxy, s3: Any
) -> None:
    proxy.faults.refuse = 1.0
    with pytest.raises(ClientError, match="SlowDown"):
        await s3.put_object(Bucket=BUCKET, Key="refused", Body=b"x" * 200_000)
    proxy.faults.clear()
    with pytest.raises(s3.exceptions.NoSuchKey):
        await s3.get_object(Bucket=BUCKET, Key="refused")


async def test_a_reset_request_may_have_been_done_all_the_same(proxy: S3Proxy, s3: Any) -> None:
    proxy.faults.reset = 1.0
    for number in range(12):
        with pytest.raises((BotoCoreError, ClientError)):
            await s3.put_object(Bucket=BUCKET, Key=f"reset-{number}", Body=b"x")
    proxy.faults.clear()
    listed = await s3.list_objects_v2(Bucket=BUCKET, Prefix="reset-")
    assert 0 < listed["KeyCount"] < 12, "both kinds of reset are wanted"
