"""Objects of a bucket, with all that has to come back with them."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from botocore.exceptions import ClientError

from api.store import BATCH, CHUNK_BYTES, MISSING, PART_BYTES, Store, mapped

if TYPE_CHECKING:
    from aiobotocore.response import StreamingBody
    from types_aiobotocore_s3.client import S3Client
    from types_aiobotocore_s3.type_defs import GetObjectOutputTypeDef


@dataclass(frozen=True)
class Seen:
    """What a listing tells of an object; it is another one when any of it has changed."""

    size: int
    etag: str
    modified_at: datetime


@dataclass(frozen=True)
class Opened:
    size: int
    metadata: Mapping[str, str]
    chunks: AsyncIterator[bytes]


class Objects:
    """Raises, in every call: StoreUnavailable."""

    def __init__(self, client: S3Client, bucket: str) -> None:
        self._client = client
        self._bucket = bucket
        self._store = Store(client, bucket)

    async def list(self, prefix: str) -> dict[str, Seen]:
        """What there is now. Markers of directories are left out: manifests know those."""
        found: dict[str, Seen] = {}
        after = ""
        while True:
            with mapped():
                answer = await self._client.list_objects_v2(
                    Bucket=self._bucket, Prefix=prefix, StartAfter=after, MaxKeys=BATCH
                )
            page = answer.get("Contents", [])
            for item in page:
                if not item["Key"].endswith("/"):
                    found[item["Key"]] = Seen(
                        item["Size"], item.get("ETag", ""), item["LastModified"]
                    )
            # as in `Store.keys`: a page may say that it is the last although it is not
            if not page or (len(page) < BATCH and not answer["IsTruncated"]):
                return found
            after = page[-1]["Key"]

    async def any_key(self) -> str | None:
        """Some key, if there is one."""
        with mapped():
            answer = await self._client.list_objects_v2(Bucket=self._bucket, MaxKeys=1)
        page = answer.get("Contents", [])
        return page[0]["Key"] if page else None

    @contextlib.asynccontextmanager
    async def open(self, key: str) -> AsyncIterator[Opened | None]:
        """An object, to be read; None when there is none."""
        answer = await self._get(key)
        if answer is None:
            yield None
            return
        # not mapped while it is read: what the reader does with it may fail for reasons of its own
        try:
            size, metadata = answer["ContentLength"], answer.get("Metadata", {})
            yield Opened(size, metadata, _chunks(answer["Body"]))
        finally:
            answer["Body"].close()

    async def _get(self, key: str) -> GetObjectOutputTypeDef | None:
        with mapped():
            try:
                return await self._client.get_object(Bucket=self._bucket, Key=key)
            except ClientError as error:
                if str(error.response.get("Error", {}).get("Code", "")) not in MISSING:
                    raise
                return None

    async def sha256(self, key: str) -> str | None:
        """Of what the store gives back; None when there is none."""
        digest = hashlib.sha256()
        async with self.open(key) as found:
            if found is None:
                return None
            async for chunk in found.chunks:
                digest.update(chunk)
        return digest.hexdigest()

    async def put(
        self, key: str, size: int, chunks: AsyncIterator[bytes], metadata: Mapping[str, str]
    ) -> None:
        """Store an object, of any size."""
        if size > PART_BYTES:
            await self._store.upload(key, chunks, metadata)
            return
        data = b"".join([chunk async for chunk in chunks])
        with mapped():
            await self._client.put_object(
                Bucket=self._bucket, Key=key, Body=data, Metadata=dict(metadata)
            )

    async def remove(self, keys: Sequence[str]) -> None:
        for start in range(0, len(keys), BATCH):
            await self._store.remove([*keys[start : start + BATCH]])

    async def clear(self, last: str = "") -> None:
        """Remove every object, and the one with the key `last` when the others are gone."""
        while True:
            with mapped():
                answer = await self._client.list_objects_v2(Bucket=self._bucket, MaxKeys=BATCH)
            keys = [item["Key"] for item in answer.get("Contents", [])]
            if not keys:
                return
            await self._store.remove([key for key in keys if key != last] or keys)

    async def check(self) -> None:
        """Make sure that the bucket is there."""
        await self._store.check()


async def _chunks(body: StreamingBody) -> AsyncIterator[bytes]:
    chunks = body.iter_chunks(CHUNK_BYTES)
    while True:
        with mapped():
            chunk = await anext(chunks, b"")
        if not chunk:
            return
        yield chunk
