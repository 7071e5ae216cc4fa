"""The barrier, against a store that does not have what the directory has."""

from __future__ import annotations

import asyncio
import errno
import os
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import pytest

from contracts.errors import NotDurable
from contracts.events import UnprovenCode as Code
from sidecar.boxhost.host_files import HostFiles
from sidecar.boxhost.walker import YOUNG_NS, Mark, Walker
from sidecar.workspace.barrier import Barrier, BarrierLimits, Carrier
from sidecar.workspace.boto_session import shared_session
from sidecar.workspace.manifest import Entry, Manifests
from sidecar.workspace.store import Store, StoreAddress, StoredObject
from tests.support.services import until

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
    async with shared_session().client(
        "s3",
        endpoint_url=address.endpoint,
        aws_access_key_id=address.access_key,
        aws_secret_access_key=address.secret_key,
        region_name="us-east-1",
    ) as s3:
        yield Both(s3, address.bucket, tmp_path, session)


async def nothing_held() -> set[int]:
    return set()


FEW = BarrierLimits(tries=2, pause=0.05)


class MakeBarrier(Protocol):
    def __call__(
        self,
        *,
        files: HostFiles | None = None,
        store: Store | None = None,
        carrier: Carrier | None = None,
        **limits: Any,
    ) -> Barrier: ...


@pytest.fixture
async def make_barrier(
    store: Store, manifests: Manifests, tmp_path: Path, session: str
) -> AsyncIterator[MakeBarrier]:
    """A barrier with these limits, of the test's directory."""
    own_store, opened = store, [HostFiles(tmp_path)]

    def make(
        *,
        files: HostFiles | None = None,
        store: Store | None = None,
        carrier: Carrier | None = None,
        **limits: Any,
    ) -> Barrier:
        if files is not None:
            opened.append(files)
        return Barrier(
            *(opened[-1], store or own_store, manifests, session, "none"),
            sync_root=False,
            held=nothing_held,
            carrier=carrier,
            limits=replace(FEW, **limits),
        )

    yield make
    for each in opened:
        await each.close()


@pytest.fixture
def under_test(make_barrier: MakeBarrier) -> Barrier:
    return make_barrier()


async def refused(under_test: Barrier) -> dict[str, str]:
    """The code of each file that is not proven."""
    with pytest.raises(NotDurable) as error:
        await under_test.prove("turn-1", 1)
    assert error.value.details["files"].keys() == error.value.details["codes"].keys()
    codes: dict[str, str] = error.value.details["codes"]
    return codes


async def test_what_is_the_same_on_both_sides_is_proven(both: Both, under_test: Barrier) -> None:
    both.here("a", b"same")
    await both.there("a", b"same")
    proof = await under_test.prove("turn-1", 1)
    assert (proof.files, proof.bytes) == (1, 4)


async def test_a_file_that_the_store_does_not_have_is_no_receipt(
    both: Both, under_test: Barrier
) -> None:
    both.here("a", b"here")
    assert await refused(under_test) == {"a": Code.MISSING}


async def test_a_file_of_another_length_is_no_receipt(both: Both, under_test: Barrier) -> None:
    both.here("a", b"long")
    await both.there("a", b"lo")
    assert await refused(under_test) == {"a": Code.SIZE_DIFFERS}


async def test_other_bytes_of_the_same_length_are_no_receipt(
    both: Both, under_test: Barrier
) -> None:
    both.here("a", b"this")
    await both.there("a", b"that")
    assert await refused(under_test) == {"a": Code.CONTENT_DIFFERS}


async def test_a_rewrite_that_did_not_arrive_is_no_receipt(both: Both, under_test: Barrier) -> None:
    """What was proven before says nothing about the bytes that are there now."""
    both.here("a", b"old1")
    await both.there("a", b"old1")
    await under_test.prove("turn-1", 1)
    both.here("a", b"new2")
    assert await refused(under_test) == {"a": Code.CONTENT_DIFFERS}


async def test_a_deletion_that_did_not_arrive_is_no_receipt(
    both: Both, under_test: Barrier
) -> None:
    await both.there("gone", b"x")
    assert await refused(under_test) == {"gone": Code.NOT_DELETED}


async def test_what_the_store_keeps_of_a_deleted_file_is_moved_out_and_kept(
    both: Both, make_barrier: MakeBarrier, store: Store, manifests: Manifests, session: str
) -> None:
    under_test = make_barrier(ghost_tries=0)
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
    both: Both, make_barrier: MakeBarrier, store: Store, session: str
) -> None:
    """A workspace that has lost its files must not take those of the store with it."""
    under_test = make_barrier(ghost_tries=0, most_ghosts=2)
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
    assert await refused(under_test) == {"b": Code.CONTENT_DIFFERS}


class Counted(HostFiles):
    settled = 0

    async def call(self, op: str, *, bound: float, **arguments: Any) -> dict[str, Any]:
        answer = await super().call(op, bound=bound, **arguments)
        self.settled += op == "settle"
        return answer


async def test_it_waits_for_what_is_on_its_way(
    both: Both, make_barrier: MakeBarrier, tmp_path: Path
) -> None:
    files = Counted(tmp_path)
    under_test = make_barrier(files=files, tries=1000)
    both.here("a", b"late")
    proving = asyncio.ensure_future(under_test.prove("turn-1", 1))
    await until(lambda: files.settled >= 3, "it looks again and again")
    assert not proving.done(), "it was proven although the store has nothing"
    await both.there("a", b"late")
    async with asyncio.timeout(20):
        assert (await proving).files == 1


async def test_a_symlink_that_the_store_does_not_have_is_no_receipt(
    both: Both, under_test: Barrier
) -> None:
    (both.directory / "link").symlink_to("elsewhere")
    assert await refused(under_test) == {"link": Code.MISSING}


async def test_a_link_to_what_is_not_utf8_is_no_receipt(both: Both, under_test: Barrier) -> None:
    (both.directory / "link").symlink_to(os.fsdecode(b"\xff"))
    await both.there("link", b"")
    assert await refused(under_test) == {"link": Code.UNSUPPORTED}


async def test_the_same_bytes_in_an_object_of_another_etag_are_proven_anew(
    both: Both, under_test: Barrier
) -> None:
    """Nothing changed here, but somebody wrote to the store."""
    both.here("a", b"same")
    await both.there("a", b"same")
    await under_test.prove("turn-1", 1)
    await both.there("a", b"evil")
    assert await refused(under_test) == {"a": Code.CONTENT_DIFFERS}
    await both.there_in_parts("a", b"same")
    assert (await under_test.prove("turn-1", 1)).files == 1


async def test_few_changes_among_many_files_are_found(both: Both, under_test: Barrier) -> None:
    """Where most is unchanged the store is listed beside the walk, and asked again for the rest."""
    for number in range(100):
        both.here(f"f{number}", b"old1")
        await both.there(f"f{number}", b"old1")
    assert (await under_test.prove("turn-1", 1)).files == 100
    both.here("f7", b"new2")
    assert await refused(under_test) == {"f7": Code.CONTENT_DIFFERS}
    await both.there("f7", b"new2")
    (both.directory / "f8").unlink()
    assert await refused(under_test) == {"f8": Code.NOT_DELETED}
    await both.not_there("f8")
    assert (await under_test.prove("turn-1", 1)).files == 99
    await both.there("f9", b"evil")
    assert await refused(under_test) == {"f9": Code.CONTENT_DIFFERS}


class Flushed(HostFiles):
    """A mount that brings a file to the store when it is settled, and not before."""

    settled = 0
    flush: Callable[[], Awaitable[None]]

    async def call(self, op: str, *, bound: float, **arguments: Any) -> dict[str, Any]:
        answer = await super().call(op, bound=bound, **arguments)
        if op == "settle":
            self.settled += 1
            await self.flush()
        return answer


@pytest.mark.parametrize("change", ["written", "deleted"])
async def test_what_is_flushed_while_the_store_is_listed_needs_no_second_look(
    both: Both, make_barrier: MakeBarrier, tmp_path: Path, address: StoreAddress, change: str
) -> None:
    """The listing beside the walk is older than what the walk flushes."""
    listed = asyncio.Event()

    class Listing(Store):
        async def list(self, prefix: str) -> dict[str, StoredObject]:
            found = await super().list(prefix)
            listed.set()
            return found

    async def nothing() -> None: ...

    async def flush() -> None:
        await listed.wait()
        if change == "written":
            await both.there("f7", b"new2")
        else:
            await both.not_there("f7")

    files = Flushed(tmp_path)
    files.flush = nothing
    async with Listing.open(address) as listing:
        under_test = make_barrier(files=files, store=listing, tries=3)
        for number in range(50):
            both.here(f"f{number}", b"old1")
            await both.there(f"f{number}", b"old1")
        newest = (both.directory / "f49").stat().st_ctime_ns
        await until(lambda: time.time_ns() > newest + YOUNG_NS, "the files are old")
        await under_test.prove("turn-1", 1)
        if change == "written":
            both.here("f7", b"new2")
        else:
            (both.directory / "f7").unlink()
        looks = files.settled
        listed.clear()
        files.flush = flush
        async with asyncio.timeout(60):
            await under_test.prove("turn-2", 2)
        assert files.settled == looks + 1


async def test_a_thousand_files_are_named_and_the_others_counted(
    both: Both, under_test: Barrier
) -> None:
    for number in range(1005):
        both.here(f"f{number}", b"x")
    with pytest.raises(NotDurable) as error:
        await under_test.prove("turn-1", 1)
    assert len(error.value.details["files"]) == 1000
    assert error.value.details["more"] == 5


class FailingTwice(HostFiles):
    """Its file `a` cannot be fsynced at first."""

    left = 2

    async def call(self, op: str, *, bound: float, **arguments: Any) -> dict[str, Any]:
        answer = await super().call(op, bound=bound, **arguments)
        if op == "settle" and self.left:
            self.left -= 1
            answer["problems"] = [{"path": "a", "errno": errno.EIO, "reason": "I/O error"}]
        return answer


async def test_a_failed_fsync_is_waited_out_and_the_stores_bytes_are_read(
    both: Both, make_barrier: MakeBarrier, address: StoreAddress, tmp_path: Path, session: str
) -> None:
    """After an EIO the mount may show what it lost: not even an ETag that fits is enough."""
    both.here("a", b"same")
    await both.there("a", b"same")
    read = []

    class Watched(Store):
        async def sha256(self, key: str) -> str | None:
            read.append(key)
            return await super().sha256(key)

    async with Watched.open(address) as watched:
        under_test = make_barrier(files=FailingTwice(tmp_path), store=watched, tries=1)
        assert (await under_test.prove("turn-1", 1)).files == 1
        assert read == [f"{session}/a"]
        assert (await under_test.prove("turn-2", 1)).files == 1
        assert len(read) == 1, "what was read once is proven"


async def test_each_code_has_its_words(
    both: Both, make_barrier: MakeBarrier, tmp_path: Path
) -> None:
    for name in ("missing", "size", "content"):
        both.here(name, b"here")
    await both.there("size", b"he")
    await both.there("content", b"evil")
    await both.there("deleted", b"x")
    (both.directory / "odd").symlink_to(os.fsdecode(b"\xff"))
    both.here("a", b"x")

    class Unreadable(FailingTwice):
        left = 1000

    under_test = make_barrier(files=Unreadable(tmp_path), tries=1, patience=0)
    with pytest.raises(NotDurable) as error:
        await under_test.prove("turn-1", 1)
    details = error.value.details
    told = {details["codes"][path]: words for path, words in details["files"].items()}
    assert told == {
        Code.MISSING: "the store does not have it",
        Code.SIZE_DIFFERS: "the store has 2 of 4 bytes",
        Code.CONTENT_DIFFERS: "the store has other bytes",
        Code.NOT_DELETED: "it is deleted here but still in the store",
        Code.UNSUPPORTED: "what it links to cannot be kept: it is not valid UTF-8",
        Code.UNREADABLE: "I/O error",
    }
    assert told.keys() == set(Code), "one of each"
    assert error.value.message.startswith("6 files are not proven to be in the store: ")


def coarse(info: os.stat_result) -> Mark:
    """As on a file system that tells nothing of a rewrite of the same length."""
    return info.st_mode, info.st_size, 0, 0, info.st_ino


class InProcess(HostFiles):
    """Calls a walker of this process."""

    def __init__(self, walker: Walker, mountpoint: Path) -> None:
        super().__init__(mountpoint)
        self._walker = walker

    async def call(self, op: str, *, bound: float, **arguments: Any) -> dict[str, Any]:
        answer: dict[str, Any] = getattr(self._walker, op)(**arguments)
        return answer


async def test_a_rewrite_that_nothing_tells_of_is_proven_once_the_store_has_it(
    both: Both, make_barrier: MakeBarrier, tmp_path: Path
) -> None:
    barrier = make_barrier(files=InProcess(Walker(str(tmp_path), mark=coarse), tmp_path))
    both.here("a", b"v=1.2.3")
    await both.there("a", b"v=1.2.3")
    first = await barrier.prove("turn-1", 1)
    (tmp_path / "a").write_bytes(b"v=1.2.4")
    await both.there("a", b"v=1.2.4")
    second = await barrier.prove("turn-2", 2)
    assert second.manifest_sha256 != first.manifest_sha256


class SlowCarrier:
    """Brings files to the store, the first ones when it may go on."""

    def __init__(self, both: Both) -> None:
        self._both = both
        self.fetched: Mapping[str, tuple[str, str]] = {}
        self.waits = asyncio.Event()
        self.go_on = asyncio.Event()

    async def push(self, wanted: Mapping[str, Entry], gone: Iterable[str]) -> None:
        datas = {path: (self._both.directory / path).read_bytes() for path in wanted}
        if not self.waits.is_set():
            self.waits.set()
            await self.go_on.wait()
        for path, data in datas.items():
            await self._both.there(path, data)
        for path in gone:
            await self._both.not_there(path)

    async def fetch(self, paths: Iterable[str]) -> None:
        assert not list(paths)


async def test_what_a_sync_has_read_does_not_reach_the_store_behind_a_later_proof(
    both: Both, make_barrier: MakeBarrier, store: Store, session: str
) -> None:
    carrier = SlowCarrier(both)
    barrier = make_barrier(carrier=carrier)
    both.here("report", b"draft 1")
    async with asyncio.timeout(30), asyncio.TaskGroup() as group:
        group.create_task(barrier.sync())
        await carrier.waits.wait()
        both.here("report", b"FINAL 1")
        proving = group.create_task(barrier.prove("turn-1", 1))
        await asyncio.wait({proving}, timeout=1)  # it must not end before the sync does
        carrier.go_on.set()
    assert proving.result().files == 1
    found = await store.get(f"{session}/report")
    assert found is not None
    assert found[0] == b"FINAL 1"
