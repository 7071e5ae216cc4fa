"""The store as the sidecar sees it: the independent witness of what a mount claims."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from aiobotocore.config import AioConfig
from botocore.exceptions import BotoCoreError, ClientError

from contracts.errors import StoreUnavailable
from sidecar.workspace.boto_session import shared_session

if TYPE_CHECKING:
    from types_aiobotocore_s3 import S3Client
    from types_aiobotocore_s3.type_defs import CompletedPartTypeDef, ObjectTypeDef

CHUNK = 1 << 20
PART = 8 << 20
PAGE = 1000  # the most that S3 gives
DELETE_BATCH = 1000
SERVER_ERROR = 500
REFUSED = 403


class StoreRefused(StoreUnavailable):
    """The key opens nothing: it was revoked, or never opened this."""


@dataclass(frozen=True)
class StoreAddress:
    endpoint: str
    access_key: str
    secret_key: str
    bucket: str


@dataclass(frozen=True)
class StoredObject:
    key: str
    size: int
    etag: str


class Store:
    """Objects of one bucket. Raises, in every call: StoreUnavailable."""

    def __init__(self, client: S3Client, bucket: str, page: int = PAGE) -> None:
        self._client = client
        self._page = page
        self.bucket = bucket

    @classmethod
    @contextlib.asynccontextmanager
    async def open(cls, address: StoreAddress, page: int = PAGE) -> AsyncIterator[Self]:
        """`page` is how many objects are listed at a time."""
        config = AioConfig(
            s3={"addressing_style": "path"},
            retries={"max_attempts": 3, "mode": "standard"},
            connect_timeout=5,
            read_timeout=60,
            max_pool_connections=32,
            # SeaweedFS keeps a checksum that came with a PUT although a weed mount has rewritten
            # the file since, and every read of it would fail.
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
        )
        async with shared_session().client(
            "s3",
            endpoint_url=address.endpoint,
            aws_access_key_id=address.access_key,
            aws_secret_access_key=address.secret_key,
            region_name="us-east-1",
            config=config,
        ) as client:
            yield cls(client, address.bucket, page)

    def in_bucket(self, bucket: str) -> Store:
        """The same store's other bucket, over the same connections."""
        return Store(self._client, bucket, self._page)

    async def list(self, prefix: str) -> dict[str, StoredObject]:
        """Every object under the prefix by key without it; directory markers left out."""
        found = {}
        async for page in self._pages(prefix):
            for item in page:
                key = item["Key"].removeprefix(prefix)
                if key and not key.endswith("/"):
                    found[key] = StoredObject(key, item["Size"], item["ETag"].strip('"'))
        return found

    async def _pages(self, prefix: str) -> AsyncIterator[Sequence[ObjectTypeDef]]:
        """Not botocore's paginator: a page that ends with the marker of the last directory says
        that it is the last one, although what is in the directory follows (SeaweedFS 4.48)."""
        after = ""
        while True:
            with _store_errors("list"):
                answer = await self._client.list_objects_v2(
                    Bucket=self.bucket, Prefix=prefix, StartAfter=after, MaxKeys=self._page
                )
            page = answer.get("Contents", [])
            yield page
            if not page or (len(page) < self._page and not answer["IsTruncated"]):
                return
            after = page[-1]["Key"]

    async def answers(self) -> bool:
        """Whether the store is there, whatever it says."""
        try:
            await self._client.list_objects_v2(Bucket=self.bucket, MaxKeys=1)
        except ClientError as error:
            return _status(error) < SERVER_ERROR
        except (BotoCoreError, OSError):
            return False
        return True

    async def head(self, key: str) -> StoredObject | None:
        """What a listing would tell of this object now; None if there is none."""
        with _store_errors("look"):
            try:
                found = await self._client.head_object(Bucket=self.bucket, Key=key)
            except ClientError as error:
                if _status(error) == 404:
                    return None
                raise
            return StoredObject(key, found["ContentLength"], found["ETag"].strip('"'))

    async def get(self, key: str) -> tuple[bytes, str] | None:
        """An object's content and ETag; None if there is none."""
        with _store_errors("read"):
            try:
                answer = await self._client.get_object(Bucket=self.bucket, Key=key)
            except self._client.exceptions.NoSuchKey:
                return None
            return await answer["Body"].read(), answer["ETag"]

    async def read(self, key: str, offset: int, size: int) -> bytes:
        """A piece of an object, which must be there."""
        with _store_errors("read"):
            answer = await self._client.get_object(
                Bucket=self.bucket, Key=key, Range=f"bytes={offset}-{offset + size - 1}"
            )
            return await answer["Body"].read()

    async def put_large(self, key: str, pieces: AsyncIterator[bytes]) -> None:
        """Store an object piece by piece; it appears when it is whole, or not at all."""
        with _store_errors("write"):
            made = await self._client.create_multipart_upload(Bucket=self.bucket, Key=key)
        upload = made["UploadId"]
        try:
            parts: list[CompletedPartTypeDef] = []
            async for data in _grouped(pieces):
                with _store_errors("write"):
                    number = len(parts) + 1
                    part = await self._client.upload_part(
                        Bucket=self.bucket, Key=key, UploadId=upload, PartNumber=number, Body=data
                    )
                parts.append({"ETag": part["ETag"], "PartNumber": number})
            with _store_errors("write"):
                await self._client.complete_multipart_upload(
                    Bucket=self.bucket, Key=key, UploadId=upload, MultipartUpload={"Parts": parts}
                )
        except BaseException:
            with contextlib.suppress(ClientError, BotoCoreError, OSError):
                await self._client.abort_multipart_upload(
                    Bucket=self.bucket, Key=key, UploadId=upload
                )
            raise

    async def put(self, key: str, data: bytes, *, replaces: str | None = "*") -> bool:
        """Store an object. `replaces` is the ETag that must be there, None if nothing may be;
        false when it is not so, and then nothing is stored."""
        condition: dict[str, Any] = {}
        if replaces is None:
            condition = {"IfNoneMatch": "*"}
        elif replaces != "*":
            condition = {"IfMatch": replaces}
        with _store_errors("write"):
            try:
                await self._client.put_object(Bucket=self.bucket, Key=key, Body=data, **condition)
            except ClientError as error:
                if error.response["Error"]["Code"] in ("PreconditionFailed", "412"):
                    return False
                raise
        return True

    async def move(self, key: str, bucket: str, new_key: str) -> None:
        """Copy an object to another bucket of the store, then delete it here."""
        with _store_errors("move"):
            await self._client.copy_object(
                Bucket=bucket, Key=new_key, CopySource={"Bucket": self.bucket, "Key": key}
            )
        await self.delete([key])

    async def delete(self, keys: Sequence[str]) -> None:
        with _store_errors("delete"):
            for start in range(0, len(keys), DELETE_BATCH):
                await self._client.delete_objects(
                    Bucket=self.bucket,
                    Delete={
                        "Objects": [{"Key": key} for key in keys[start : start + DELETE_BATCH]],
                        "Quiet": True,
                    },
                )

    async def sha256(self, key: str) -> str | None:
        """The hash of an object's content as the store gives it; None if there is none."""
        digest = hashlib.sha256()
        with _store_errors("read"):
            try:
                answer = await self._client.get_object(Bucket=self.bucket, Key=key)
            except self._client.exceptions.NoSuchKey:
                return None
            async for data in answer["Body"].iter_chunks(CHUNK):
                digest.update(data)
        return digest.hexdigest()


async def _grouped(pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """In parts that S3 takes: all but the last of at least 5 MiB."""
    part = bytearray()
    async for data in pieces:
        part += data
        if len(part) >= PART:
            yield bytes(part)
            part.clear()
    if part:
        yield bytes(part)


@contextlib.contextmanager
def _store_errors(what: str) -> Iterator[None]:
    try:
        yield
    except (ClientError, BotoCoreError, OSError) as error:
        if isinstance(error, ClientError) and _status(error) == REFUSED:
            raise StoreRefused(f"the store refuses to {what}: {error}") from error
        raise StoreUnavailable(
            f"the store cannot {what}: {error}", hint="Is SeaweedFS up? `holdfast status` tells."
        ) from error


def _status(error: ClientError) -> int:
    return int(error.response["ResponseMetadata"]["HTTPStatusCode"])
