"""The barrier, against a store that does not have what the directory has."""

from __future__ import annotations

import asyncio
import errno
import hashlib
import os
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import aioboto3
import pytest

from contracts.errors import NotDurable
from sidecar.boxhost.host_files import HostFiles
from sidecar.workspace import barrier
from sidecar.workspace.barrier import Barrier
from sidecar.workspace.manifest import Manifests
from sidecar.workspace.store import Store, StoreAddress

if TYPE_CHECKING:
    from types_aiobotocore_s3 import S3Client


class Both:
    """A directory and a prefix of the store that nothing keeps in step."""

    def __init__(self, s3: S3Client, bucket: str, directory: Path, session: str) -> None:
        self._s3 = s3
        self._bucket = bucket
        self._session = session
        self.directory = directory

    def here(self, name: str, data: bytes) -> None:
        (self.directory / name).write_bytes(data)

    async def there(self, name: str, data: bytes) -> None:
        await self._s3.put_object(Bucket=self._bucket, Key=self._key(name), Body=data)

    async def not_there(self, name: str) -> None:
        await self._s3.delete_object(Bucket=self._bucket, Key=self._key(name))

    async def there_in_parts(self, name: str, data: bytes) -> None:
        """Stored so that its ETag is not the md5 of its bytes."""
        bucket, key = self._bucket, self._key(name)
        upload = (await self._s3.create_multipart_upload(Bucket=bucket, Key=key))["UploadId"]
        part = await self._s3.upload_part(
            Bucket=bucket, Key=key, UploadId=upload, PartNumber=1, Body=data
        )
        await self._s3.complete_multipart_upload(
            Bucket=bucket,
            Key=key,
            UploadId=upload,
            MultipartUpload={"Parts": [{"PartNumber": 1, "ETag": part["ETag"]}]},
        )

    def _key(self, name: str) -> str:
        return f"{self._session}/{name}"


@pytest.fixture
def session() -> str:
    return str(uuid.uuid4())


@pytest.fixture
async def both(address: StoreAddress, tmp_path: Path, session: str) -> AsyncIterator[Both]:
    async with aioboto3.Session().client(
        "s3",
        endpoint_url=address.endpoint,
        aws_access_key_id=address.access_key,
        aws_secret_access_key=address.secret_key,
        region_name="us-east-1",
    ) as s3:
        yield Both(s3, address.bucket, tmp_path, session)


async def nothing_held() -> set[int]:
    return set()


@pytest.fixture
async def under_test(
    store: Store,
    manifests: Manifests,
    tmp_path: Path,
    session: str,
    monkeypatch: pytest.MonkeyPatch,
) -> AsyncIterator[Barrier]:
    monkeypatch.setattr(barrier, "TRIES", 2)
    files = HostFiles(tmp_path)
    yield Barrier(files, store, manifests, session, "none", sync_root=False, held=nothing_held)
    await files.close()


async def refused(under_test: Barrier) -> dict[str, str]:
    with pytest.raises(NotDurable) as error:
        await under_test.prove("turn-1", 1)
    files: dict[str, str] = error.value.details["files"]
    return files


async def test_what_is_the_same_on_both_sides_is_proven(both: Both, under_test: Barrier) -> None:
    both.here("a", b"same")
    await both.there("a", b"same")
    proof = await under_test.prove("turn-1", 1)
    assert (proof.files, proof.bytes) == (1, 4)


async def test_a_file_that_the_store_does_not_have_is_no_receipt(
    both: Both, under_test: Barrier
) -> None:
    both.here("a", b"here")
    assert await refused(under_test) == {"a": "the store does not have it"}


async def test_a_file_of_another_length_is_no_receipt(both: Both, under_test: Barrier) -> None:
    both.here("a", b"long")
    await both.there("a", b"lo")
    assert await refused(under_test) == {"a": "the store has 2 of 4 bytes"}


async def test_other_bytes_of_the_same_length_are_no_receipt(
    both: Both, under_test: Barrier
) -> None:
    both.here("a", b"this")
    await both.there("a", b"that")
    assert await refused(under_test) == {"a": "the store has other bytes"}


async def test_a_rewrite_that_did_not_arrive_is_no_receipt(both: Both, under_test: Barrier) -> None:
    """What was proven before says nothing about the bytes that are there now."""
    both.here("a", b"old1")
    await both.there("a", b"old1")
    await under_test.prove("turn-1", 1)
    both.here("a", b"new2")
    assert await refused(under_test) == {"a": "the store has other bytes"}


async def test_a_deletion_that_did_not_arrive_is_no_receipt(
    both: Both, under_test: Barrier
) -> None:
    await both.there("gone", b"x")
    assert await refused(under_test) == {"gone": "it is deleted here but still in the store"}


async def test_what_the_store_keeps_of_a_deleted_file_is_moved_out_and_kept(
    both: Both,
    under_test: Barrier,
    store: Store,
    manifests: Manifests,
    session: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(barrier, "GHOST_TRIES", 0)
    both.here("config", b"new")
    await both.there("config", b"new")
    await both.there("config.lock", b"old")
    proof = await under_test.prove("turn-1", 1)
    assert (proof.ghosts, proof.files) == (("config.lock",), 1)
    assert set(await store.list(f"{session}/")) == {"config"}
    kept = await store.in_bucket(manifests.bucket).get(f"{session}/removed/turn-1/config.lock")
    assert kept is not None
    assert kept[0] == b"old"


async def test_many_files_that_are_only_in_the_store_are_touched_by_nobody(
    both: Both, under_test: Barrier, store: Store, session: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A workspace that has lost its files must not take those of the store with it."""
    monkeypatch.setattr(barrier, "GHOST_TRIES", 0)
    monkeypatch.setattr(barrier, "MOST_GHOSTS", 2)
    for number in range(3):
        await both.there(f"f{number}", b"x")
    assert len(await refused(under_test)) == 3
    assert len(await store.list(f"{session}/")) == 3


async def test_an_object_whose_etag_is_no_md5_is_compared_by_its_bytes(
    both: Both, under_test: Barrier
) -> None:
    both.here("a", b"same")
    await both.there_in_parts("a", b"same")
    assert (await under_test.prove("turn-1", 1)).files == 1
    both.here("b", b"this")
    await both.there_in_parts("b", b"that")
    assert await refused(under_test) == {"b": "the store has other bytes"}


async def test_it_waits_for_what_is_on_its_way(
    both: Both, under_test: Barrier, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(barrier, "TRIES", 100)
    both.here("a", b"late")
    proving = asyncio.ensure_future(under_test.prove("turn-1", 1))
    done, _ = await asyncio.wait({proving}, timeout=0.5)
    assert not done, "it was proven although the store has nothing"
    await both.there("a", b"late")
    async with asyncio.timeout(20):
        assert (await proving).files == 1


async def test_a_symlink_that_the_store_does_not_have_is_no_receipt(
    both: Both, under_test: Barrier
) -> None:
    (both.directory / "link").symlink_to("elsewhere")
    assert await refused(under_test) == {"link": "the store does not have it"}


async def test_a_link_to_what_is_not_utf8_is_no_receipt(both: Both, under_test: Barrier) -> None:
    (both.directory / "link").symlink_to(os.fsdecode(b"\xff"))
    await both.there("link", b"")
    assert "not valid UTF-8" in (await refused(under_test))["link"]


async def test_the_same_bytes_in_an_object_of_another_etag_are_proven_anew(
    both: Both, under_test: Barrier
) -> None:
    """Nothing changed here, but somebody wrote to the store."""
    both.here("a", b"same")
    await both.there("a", b"same")
    await under_test.prove("turn-1", 1)
    await both.there("a", b"evil")
    assert await refused(under_test) == {"a": "the store has other bytes"}
    await both.there_in_parts("a", b"same")
    assert (await under_test.prove("turn-1", 1)).files == 1


async def test_few_changes_among_many_files_are_found(both: Both, under_test: Barrier) -> None:
    """Where most is unchanged the store is listed beside the walk, and asked again for the rest."""
    for number in range(100):
        both.here(f"f{number}", b"old1")
        await both.there(f"f{number}", b"old1")
    assert (await under_test.prove("turn-1", 1)).files == 100
    both.here("f7", b"new2")
    assert await refused(under_test) == {"f7": "the store has other bytes"}
    await both.there("f7", b"new2")
    (both.directory / "f8").unlink()
    assert await refused(under_test) == {"f8": "it is deleted here but still in the store"}
    await both.not_there("f8")
    assert (await under_test.prove("turn-1", 1)).files == 99
    await both.there("f9", b"evil")
    assert await refused(under_test) == {"f9": "the store has other bytes"}


async def test_a_thousand_files_are_named_and_the_others_counted(
    both: Both, under_test: Barrier
) -> None:
    for number in range(1005):
        both.here(f"f{number}", b"x")
    with pytest.raises(NotDurable) as error:
        await under_test.prove("turn-1", 1)
    assert len(error.value.details["files"]) == 1000
    assert error.value.details["more"] == 5


async def test_a_failed_fsync_is_waited_out_and_the_stores_bytes_are_read(
    both: Both,
    under_test: Barrier,
    store: Store,
    session: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """After an EIO the mount may show what it lost: not even an ETag that fits is enough."""
    both.here("a", b"same")
    await both.there("a", b"same")
    asked, failing, read = under_test._files.call, [True, True], []

    async def call(op: str, *, bound: float, **arguments: Any) -> dict[str, Any]:
        answer = await asked(op, bound=bound, **arguments)
        if op == "settle" and failing:
            failing.pop()
            answer["problems"] = [{"path": "a", "errno": errno.EIO, "reason": "I/O error"}]
        return answer

    async def sha256(key: str) -> str | None:
        read.append(key)
        return hashlib.sha256(b"same").hexdigest()

    monkeypatch.setattr(under_test._files, "call", call)
    monkeypatch.setattr(store, "sha256", sha256)
    monkeypatch.setattr(barrier, "TRIES", 1)
    assert (await under_test.prove("turn-1", 1)).files == 1
    assert read == [f"{session}/a"]
    assert (await under_test.prove("turn-2", 1)).files == 1
    assert len(read) == 1, "what was read once is proven"
