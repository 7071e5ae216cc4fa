"""Manifests: stored once, found again, fenced by epoch."""

from __future__ import annotations

import asyncio
import hashlib
import json
import uuid
from dataclasses import replace

import pytest

from contracts.errors import StaleEpoch, StoreUnavailable
from sidecar.workspace.manifest import Entry, Manifest, Manifests
from sidecar.workspace.store import Store, StoreAddress
from tests.integration.workspace.conftest import STATE_BUCKET

ENTRIES = (
    Entry("a", "directory", None, None, 0o755, 1, None),
    Entry("a/é.txt", "file", 3, "ab" * 32, 0o644, 1_763_300_000_123_456_789, None),
    Entry("link", "symlink", None, None, 0o777, 2, "a/é.txt"),
)


@pytest.fixture
def manifest() -> Manifest:
    return Manifest(str(uuid.uuid4()), "turn-1", 3, "weed", ENTRIES)


async def test_there_is_none_before_the_first(manifests: Manifests) -> None:
    assert await manifests.latest(str(uuid.uuid4())) is None


async def test_what_was_stored_last_is_found(manifests: Manifests, manifest: Manifest) -> None:
    await manifests.put(manifest)
    later = replace(manifest, turn_id="turn-2", epoch=4, entries=ENTRIES[:1])
    await manifests.put(later)
    assert await manifests.latest(manifest.session_id) == later


async def test_the_hash_is_that_of_the_stored_bytes(
    manifests: Manifests, manifest: Manifest, store: Store
) -> None:
    digest = await manifests.put(manifest)
    found = await store.in_bucket(STATE_BUCKET).get(f"{manifest.session_id}/manifests/turn-1.json")
    assert found is not None
    assert hashlib.sha256(found[0]).hexdigest() == digest
    plain = json.loads(found[0])
    assert (plain["v"], plain["epoch"], plain["engine"]) == (1, 3, "weed")
    assert plain["entries"][2] == {
        "path": "link",
        "kind": "symlink",
        "size": None,
        "sha256": None,
        "mode": 0o777,
        "mtime_ns": 2,
        "target": "a/é.txt",
        "md5": None,
    }


async def test_the_same_turn_may_be_stored_again(manifests: Manifests, manifest: Manifest) -> None:
    await manifests.put(manifest)
    again = replace(manifest, entries=ENTRIES[:2])
    await manifests.put(again)
    assert await manifests.latest(manifest.session_id) == again


async def test_an_older_epoch_overwrites_nothing(manifests: Manifests, manifest: Manifest) -> None:
    await manifests.put(manifest)
    for turn in ("turn-1", "turn-0"):
        stale = replace(manifest, turn_id=turn, epoch=2, entries=())
        with pytest.raises(StaleEpoch):
            await manifests.put(stale)
    assert await manifests.latest(manifest.session_id) == manifest


async def test_an_older_epoch_that_looked_before_the_newer_one_wrote_is_refused(
    manifests: Manifests, manifest: Manifest, address: StoreAddress
) -> None:
    """It read the pointer, slept, and writes now: the condition on the ETag stops it."""

    class Sleepy(Store):
        async def put(self, key: str, data: bytes, *, replaces: str | None = "*") -> bool:
            if key.endswith("/latest.json"):
                await manifests.put(replace(manifest, turn_id="turn-2", epoch=4))
            return await super().put(key, data, replaces=replaces)

    async with Sleepy.open(replace(address, bucket=STATE_BUCKET)) as sleepy:
        with pytest.raises(StaleEpoch):
            await Manifests(sleepy).put(manifest)
    latest = await manifests.latest(manifest.session_id)
    assert latest is not None
    assert latest.turn_id == "turn-2"


async def test_an_older_epoch_does_not_overwrite_the_document_of_a_newer_one(
    manifests: Manifests, manifest: Manifest, store: Store
) -> None:
    """The newer one has stored its document and not yet the pointer."""
    state = store.in_bucket(STATE_BUCKET)
    key = f"{manifest.session_id}/manifests/{manifest.turn_id}.json"
    newer = replace(manifest, epoch=5)
    await state.put(key, newer.document)
    with pytest.raises(StaleEpoch):
        await manifests.put(replace(manifest, epoch=4, entries=()))
    found = await state.get(key)
    assert found is not None
    assert Manifest.parse(found[0]) == newer
    assert await manifests.latest(manifest.session_id) is None


@pytest.mark.parametrize("name", ["latest", "turn-1", "edited"])
@pytest.mark.parametrize("document", [b"", b"[" * 100_000, b"{}", b'{"v": 9}', b"[1]"])
async def test_what_cannot_be_read_is_an_error_of_the_store(
    manifests: Manifests, manifest: Manifest, store: Store, name: str, document: bytes
) -> None:
    await manifests.put(manifest)
    key = f"{manifest.session_id}/manifests/{name}.json"
    await store.in_bucket(STATE_BUCKET).put(key, document)
    with pytest.raises(StoreUnavailable):
        await Manifests(store.in_bucket(STATE_BUCKET)).latest(manifest.session_id)


async def test_two_writers_of_one_epoch_both_end(manifests: Manifests, manifest: Manifest) -> None:
    second = replace(manifest, turn_id="turn-2")
    await asyncio.gather(manifests.put(manifest), manifests.put(second))
    assert await manifests.latest(manifest.session_id) in (manifest, second)
