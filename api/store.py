"""The session bucket and the state bucket, read and emptied over S3."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import re
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any
from uuid import UUID

import aioboto3
import aiohttp
from aiobotocore.config import AioConfig
from aiobotocore.session import AioSession
from botocore.exceptions import BotoCoreError, ClientError
from botocore.loaders import Loader, create_loader

from api import cursors
from contracts.bodies import FileEntry, FilePage
from contracts.errors import FileNotFound, NotFound, RangeNotSatisfiable, StoreUnavailable

if TYPE_CHECKING:
    from types_aiobotocore_s3.client import S3Client
    from types_aiobotocore_s3.type_defs import CompletedPartTypeDef

    from api.settings import StorageSettings

# S3 lists and deletes at most this many keys a call.
BATCH = 1000
CHUNK_BYTES = 256 * 1024
# Of an upload; S3 takes 10,000 parts, none but the last below 5 MiB.
PART_BYTES = 8 << 20
# Beside the sessions' directories, which are named by UUIDs.
PROBE_KEY = ".ready"
MISSING = frozenset({"404", "NoSuchKey", "NotFound"})
RANGE = re.compile(r"bytes=(\d+-\d*|-\d+)")


@contextlib.contextmanager
def mapped() -> Iterator[None]:
    """Turn what boto raises, and what its connections raise under it, into ours.

    Raises: StoreUnavailable.
    """
    try:
        yield
    except (BotoCoreError, ClientError, aiohttp.ClientError, OSError) as error:
        why = _code(error) if isinstance(error, ClientError) else type(error).__name__
        raise StoreUnavailable(
            f"The object store does not do what it was asked ({why}).",
            hint="Try again; if it goes on, see the log of SeaweedFS.",
        ) from error


def _code(error: ClientError) -> str:
    return str(error.response.get("Error", {}).get("Code", ""))


def name_version(etag: str, modified_at: datetime) -> str:
    """An ETag for browsers. The store's own is not enough: SeaweedFS keeps that of an upload when a
    mount writes to the file later."""
    plain = etag.strip('"')
    return f'"{plain}-{int(modified_at.timestamp())}"' if plain else ""


@dataclass(frozen=True)
class OpenFile:
    """An object whose bytes are about to be read; `content_range` is set for a part of it."""

    size: int
    etag: str
    modified_at: datetime
    content_range: str | None
    chunks: AsyncIterator[bytes]


@dataclass(frozen=True)
class Measured:
    objects: int
    bytes: int


class Store:
    def __init__(self, client: S3Client, bucket: str) -> None:
        self._client = client
        self._bucket = bucket

    async def check(self) -> None:
        """Make sure that the bucket is there.

        Raises: StoreUnavailable.
        """
        with mapped():
            try:
                await self._client.head_bucket(Bucket=self._bucket)
            except ClientError as error:
                if _code(error) not in MISSING:
                    raise
                await self._client.create_bucket(Bucket=self._bucket)

    async def check_writing(self) -> None:
        """Make sure that the bucket takes an object: a store whose disk is full still answers.

        Raises: StoreUnavailable.
        """
        with mapped():
            await self._client.put_object(Bucket=self._bucket, Key=PROBE_KEY, Body=b"ready")
            await self._client.delete_object(Bucket=self._bucket, Key=PROBE_KEY)

    async def list_directory(
        self, session_id: UUID, path: str, *, limit: int, cursor: str | None
    ) -> FilePage:
        """One page of the names directly in a directory of the workspace.

        Raises: FileNotFound, InvalidInput for a foreign cursor, StoreUnavailable.
        """
        prefix = f"{session_id}/{path}/" if path else f"{session_id}/"
        request: dict[str, Any] = {"MaxKeys": limit, "Delimiter": "/"}
        if cursor is not None:
            asked, token = cursors.decode(cursor, str, str)
            if asked != path:
                raise cursors.refused()
            request["ContinuationToken"] = token
        with mapped():
            answer = await self._client.list_objects_v2(
                Bucket=self._bucket, Prefix=prefix, **request
            )
        contents, folders = answer.get("Contents", []), answer.get("CommonPrefixes", [])
        if path and not contents and not folders and cursor is None:
            await self._must_be_directory(prefix, path)
        entries = [
            _entry(path, item["Key"][len(prefix) :], item["Size"], item["LastModified"])
            for item in contents
            # the marker of the directory itself, and of one that some client put beside it
            if not item["Key"].endswith("/")
        ]
        entries += [_entry(path, item["Prefix"][len(prefix) :].rstrip("/")) for item in folders]
        entries.sort(key=lambda entry: entry.name)
        token = answer.get("NextContinuationToken") if answer["IsTruncated"] else None
        next_cursor = cursors.encode(path, token) if token is not None else None
        return FilePage(path=path, entries=entries, next_cursor=next_cursor)

    async def _must_be_directory(self, prefix: str, path: str) -> None:
        """An empty directory is in no listing of its own; only HEAD knows it."""
        with mapped():
            try:
                await self._client.head_object(Bucket=self._bucket, Key=prefix)
            except ClientError as error:
                if _code(error) not in MISSING:
                    raise
                raise FileNotFound(
                    f"There is no directory {path!r} in the workspace.",
                    hint="List its parent to see what is there.",
                ) from error

    @contextlib.asynccontextmanager
    async def open(
        self, session_id: UUID, path: str, byte_range: str | None = None
    ) -> AsyncIterator[OpenFile]:
        """A file, or the range of it that a `Range` header asks for.

        A header that is malformed or asks for several ranges is ignored, as RFC 9110 allows.

        Raises: FileNotFound, RangeNotSatisfiable, StoreUnavailable; also while it is read.
        """
        request: dict[str, Any] = {}
        if byte_range is not None and RANGE.fullmatch(byte_range):
            request["Range"] = byte_range
        with mapped():
            try:
                answer = await self._client.get_object(
                    Bucket=self._bucket, Key=f"{session_id}/{path}", **request
                )
            except ClientError as error:
                raise _read_error(error, path) from error
            body = answer["Body"]
            async with body:
                yield OpenFile(
                    size=answer["ContentLength"],
                    etag=name_version(answer.get("ETag", ""), answer["LastModified"]),
                    modified_at=answer["LastModified"],
                    content_range=answer.get("ContentRange") or None,
                    chunks=body.iter_chunks(CHUNK_BYTES),
                )

    async def measure(self, directory: str) -> Measured:
        """How many objects are under `directory/`, and how big they are together.

        Raises: StoreUnavailable.
        """
        objects = size = 0
        with mapped():
            pages = self._client.get_paginator("list_objects_v2").paginate(
                Bucket=self._bucket, Prefix=directory.rstrip("/") + "/"
            )
            async for page in pages:
                for item in page.get("Contents", []):
                    objects += not item["Key"].endswith("/")
                    size += item["Size"]
        return Measured(objects, size)

    async def delete_tree(self, directory: str) -> int:
        """Delete every object under `directory/` and no other; says how many there were.

        Raises: StoreUnavailable.
        """
        prefix = directory.rstrip("/") + "/"
        deleted = 0
        with mapped():
            while True:
                answer = await self._client.list_objects_v2(
                    Bucket=self._bucket, Prefix=prefix, MaxKeys=BATCH
                )
                keys = [item["Key"] for item in answer.get("Contents", [])]
                if not keys:
                    break
                await self._delete(keys)
                deleted += sum(not key.endswith("/") for key in keys)
            await self._delete_directories(prefix)
        return deleted

    async def head(self, key: str) -> int | None:
        """The size of an object; None if there is none.

        Raises: StoreUnavailable.
        """
        with mapped():
            try:
                found = await self._client.head_object(Bucket=self._bucket, Key=key)
            except ClientError as error:
                if _code(error) not in MISSING:
                    raise
                return None
            return found["ContentLength"]

    async def has_directory(self, directory: str) -> bool:
        """Whether there is anything under `directory/`, or its marker.

        Raises: StoreUnavailable.
        """
        prefix = directory + "/"
        with mapped():
            answer = await self._client.list_objects_v2(
                Bucket=self._bucket, Prefix=prefix, Delimiter="/", MaxKeys=1
            )
        if answer.get("Contents") or answer.get("CommonPrefixes"):
            return True
        return await self.head(prefix) is not None

    async def keys(self, prefix: str) -> AsyncIterator[str]:
        """Every key under a prefix, also those that come to be meanwhile, perhaps.

        Raises: StoreUnavailable.
        """
        after = ""
        while True:
            with mapped():
                answer = await self._client.list_objects_v2(
                    Bucket=self._bucket, Prefix=prefix, StartAfter=after, MaxKeys=BATCH
                )
            page = [item["Key"] for item in answer.get("Contents", [])]
            for key in page:
                yield key
            # a page that ends with the marker of the last directory says that it is the last one,
            # although what is in the directory follows (SeaweedFS 4.48)
            if not page or (len(page) < BATCH and not answer["IsTruncated"]):
                return
            after = page[-1]

    async def put(self, key: str, data: bytes) -> None:
        """Raises: StoreUnavailable."""
        with mapped():
            await self._client.put_object(Bucket=self._bucket, Key=key, Body=data)

    async def copy(self, key: str, to: Store, new_key: str) -> None:
        """Raises: StoreUnavailable."""
        with mapped():
            await self._client.copy_object(
                Bucket=to._bucket, Key=new_key, CopySource={"Bucket": self._bucket, "Key": key}
            )

    async def remove(self, keys: list[str]) -> None:
        """Raises: StoreUnavailable."""
        with mapped():
            await self._delete(keys)

    async def upload(
        self, key: str, content: AsyncIterator[bytes], metadata: Mapping[str, str] | None = None
    ) -> None:
        """Store an object of any size, which appears when it is whole.

        Raises: StoreUnavailable, and what `content` raises; then nothing is stored.
        """
        where: dict[str, Any] = {"Bucket": self._bucket, "Key": key}
        with mapped():
            begun = await self._client.create_multipart_upload(
                **where, Metadata=dict(metadata or {})
            )
            upload = begun["UploadId"]
        try:
            parts: list[CompletedPartTypeDef] = []
            async for piece in _pieces(content):
                number = len(parts) + 1
                with mapped():
                    done = await self._client.upload_part(
                        **where, UploadId=upload, PartNumber=number, Body=piece
                    )
                parts.append({"PartNumber": number, "ETag": done["ETag"]})
            with mapped():
                await self._client.complete_multipart_upload(
                    **where, UploadId=upload, MultipartUpload={"Parts": parts}
                )
        except BaseException:
            with contextlib.suppress(StoreUnavailable), mapped():
                await asyncio.shield(self._client.abort_multipart_upload(**where, UploadId=upload))
            raise

    async def directories(self, prefix: str) -> list[str]:
        """`prefix` and every directory below it, parents first.

        Raises: StoreUnavailable.
        """
        with mapped():
            return await self._directories(prefix)

    async def _delete(self, keys: list[str]) -> None:
        answer = await self._client.delete_objects(
            Bucket=self._bucket,
            Delete={"Objects": [{"Key": key} for key in keys], "Quiet": True},
        )
        failed = answer.get("Errors", [])
        if failed:
            # the loop ends here and not by listing the same keys for ever
            raise StoreUnavailable(
                f"The object store did not delete {len(failed)} of {len(keys)} objects "
                f"({failed[0].get('Code', '')}).",
                hint="Delete the session again.",
            )

    async def _delete_directories(self, prefix: str) -> None:
        """SeaweedFS keeps directories that have no key; they show as common prefixes only."""
        found = await self._directories(prefix)
        # children first: each was found after its parent
        found.reverse()
        for start in range(0, len(found), BATCH):
            await self._delete(found[start : start + BATCH])

    async def _directories(self, prefix: str) -> list[str]:
        found, index = [prefix], 0
        while index < len(found):
            pages = self._client.get_paginator("list_objects_v2").paginate(
                Bucket=self._bucket, Prefix=found[index], Delimiter="/"
            )
            async for page in pages:
                found += [item["Prefix"] for item in page.get("CommonPrefixes", [])]
            index += 1
        return found


@dataclass(frozen=True)
class Stores:
    """What a session has in the store: its workspace, and what is kept beside it."""

    sessions: Store
    state: Store

    async def check(self) -> None:
        """Raises: StoreUnavailable."""
        await self.sessions.check()
        await self.state.check()

    async def check_writing(self) -> None:
        """Raises: StoreUnavailable."""
        await self.check()
        await self.state.check_writing()

    async def manifest(self, session_id: UUID, turn_id: UUID) -> bytes:
        """The manifest of a turn's receipt, byte for byte as the receipt's sha256 has it.

        Raises: NotFound, StoreUnavailable.
        """
        try:
            async with self.state.open(session_id, f"manifests/{turn_id}.json") as file:
                return b"".join([chunk async for chunk in file.chunks])
        except FileNotFound as error:
            raise NotFound(
                "This turn has no manifest.",
                hint="A turn has one when it has a receipt; see the turn for why it has none.",
            ) from error


async def _pieces(content: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    held = bytearray()
    async for chunk in content:
        held += chunk
        while len(held) >= PART_BYTES:
            yield bytes(held[:PART_BYTES])
            del held[:PART_BYTES]
    if held:
        yield bytes(held)


def _read_error(error: ClientError, path: str) -> Exception:
    if _code(error) in MISSING:
        return FileNotFound(
            f"There is no file {path!r} in the workspace.",
            hint="What a running turn wrote may not be stored yet; see the live view.",
        )
    if _code(error) == "InvalidRange":
        headers = error.response.get("ResponseMetadata", {}).get("HTTPHeaders", {})
        size = re.fullmatch(r"bytes \*/(\d+)", headers.get("content-range", ""))
        details = {"size": int(size[1])} if size is not None else {}
        return RangeNotSatisfiable(
            f"The file {path!r} has no such range.", hint="Ask for a range inside it.", **details
        )
    return error


def _entry(
    path: str, name: str, size: int | None = None, modified_at: datetime | None = None
) -> FileEntry:
    return FileEntry(
        path=f"{path}/{name}" if path else name,
        name=name,
        kind="directory" if size is None else "file",
        size=size,
        modified_at=modified_at,
    )


@functools.cache
def load_models() -> Loader:
    """One loader for all clients: it keeps the service models, which take long to parse."""
    return create_loader()


@contextlib.asynccontextmanager
async def open_client(settings: StorageSettings) -> AsyncIterator[S3Client]:
    """Connections to the store for the time of the block."""
    core = AioSession()
    core.register_component("data_loader", load_models())
    session = aioboto3.Session(
        botocore_session=core,
        aws_access_key_id=settings.s3_access_key.get_secret_value(),
        aws_secret_access_key=settings.s3_secret_key.get_secret_value(),
        region_name="us-east-1",
    )
    config = AioConfig(
        connect_timeout=5,
        read_timeout=60,
        retries={"mode": "standard", "max_attempts": 2},
        max_pool_connections=32,
        s3={"addressing_style": "path"},
        # SeaweedFS is behind no proxy and needs no checksum trailers
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
        proxies={},
    )
    async with session.client("s3", endpoint_url=settings.s3_endpoint, config=config) as client:
        yield client


@contextlib.asynccontextmanager
async def open_stores(settings: StorageSettings) -> AsyncIterator[Stores]:
    """The stores for the time of the block."""
    async with open_client(settings) as client:
        yield Stores(Store(client, settings.s3_bucket), Store(client, settings.s3_state_bucket))
