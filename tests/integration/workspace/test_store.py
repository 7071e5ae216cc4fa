"""The store as the barrier's witness."""

from __future__ import annotations

import uuid

import pytest

from sidecar.workspace.store import Store, StoreAddress


@pytest.mark.parametrize("page", [1, 3, 4, 5, 11, 12, 15, 1000])
async def test_a_listing_is_whole_wherever_its_pages_end(
    store: Store, address: StoreAddress, page: int
) -> None:
    """geesefs stores a marker for each directory, and a page may end with one."""
    session = str(uuid.uuid4())
    names = {f"d{d}/f{f}" for d in range(3) for f in range(4)}
    for name in sorted(names | {"d0/", "d1/", "d2/"}):
        await store.put(f"{session}/{name}", b"")
    async with Store.open(address, page) as paged:
        assert set(await paged.list(f"{session}/")) == names


async def test_a_look_at_one_object_tells_what_a_listing_tells(store: Store) -> None:
    session = str(uuid.uuid4())
    await store.put(f"{session}/a", b"text")
    listed = (await store.list(f"{session}/"))["a"]
    looked = await store.head(f"{session}/a")
    assert looked is not None
    assert (looked.size, looked.etag) == (listed.size, listed.etag)
    assert await store.head(f"{session}/b") is None
