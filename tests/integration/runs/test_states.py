"""Native states in a real store: the newest is named, older writers are refused, damage is seen."""

from __future__ import annotations

import gzip
import hashlib
import json
from typing import Any
from uuid import UUID, uuid4

import pytest

from contracts.bodies import RunRequest
from contracts.errors import StaleEpoch
from sidecar.harnesses.state import StateBroken
from sidecar.runs.states import Native, States
from sidecar.workspace.store import Store
from tests.support.services import STATE_BUCKET


@pytest.fixture
def bucket(store: Store) -> Store:
    return store.in_bucket(STATE_BUCKET)


@pytest.fixture
def states(bucket: Store) -> States:
    return States(bucket)


def request(session_id: UUID, epoch: int) -> RunRequest:
    return RunRequest(
        turn_id=uuid4(),
        session_id=session_id,
        epoch=epoch,
        prompt="",
        harness="pi",
        provider="local",
    )


async def test_the_latest_state_comes_back_as_it_went(states: States) -> None:
    session = uuid4()
    await states.put(request(session, 1), Native("acp-1", 1), b"first")
    await states.put(request(session, 2), Native("acp-1", 2), b"second")
    latest = await states.latest(session, "pi")
    assert latest is not None
    assert latest.native == Native("acp-1", 2)
    assert await states.fetch(session, "pi", latest) == b"second"


async def test_a_harness_without_a_state_has_none(states: States) -> None:
    session = uuid4()
    await states.put(request(session, 1), Native("acp", 1), b"pi's")
    assert await states.latest(session, "claude") is None
    assert await states.latest(uuid4(), "pi") is None


async def test_an_earlier_turn_does_not_replace_a_later_one_s_state(states: States) -> None:
    session = uuid4()
    await states.put(request(session, 5), Native("acp", 5), b"of the later turn")
    with pytest.raises(StaleEpoch):
        await states.put(request(session, 4), Native("acp", 4), b"of a zombie")
    latest = await states.latest(session, "pi")
    assert latest is not None
    assert await states.fetch(session, "pi", latest) == b"of the later turn"


async def test_a_turn_may_store_its_state_twice(states: States, bucket: Store) -> None:
    session = uuid4()
    again = request(session, 1)
    await states.put(again, Native("acp", 1), b"one")
    stored = await states.put(again, Native("acp", 1), b"two")
    assert stored.older == ()
    assert await states.fetch(session, "pi", stored) == b"two"
    assert set(await bucket.list(f"{session}/state/pi/")) == {stored.name, "latest.json"}


async def test_a_writer_that_dies_before_it_names_the_latest_state_loses_nothing(
    states: States, bucket: Store
) -> None:
    session = uuid4()
    again = request(session, 1)
    await states.put(again, Native("acp", 1), b"one")

    class Died(Exception):
        pass

    async def put(key: str, data: bytes, **how: Any) -> bool:
        if key.endswith("latest.json"):
            raise Died
        return await Store.put(bucket, key, data, **how)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bucket, "put", put)
        with pytest.raises(Died):
            await states.put(again, Native("acp", 1), b"two")
    latest = await states.latest(session, "pi")
    assert latest is not None
    assert await states.fetch(session, "pi", latest) == b"one"


async def test_a_later_turn_that_knows_less_replaces_the_state(states: States) -> None:
    session = uuid4()
    await states.put(request(session, 3), Native("acp", 3), b"three")
    stored = await states.put(request(session, 4), Native("other", 0), b"four")
    assert (await states.latest(session, "pi")) == stored


async def test_the_state_of_an_earlier_release_is_read(states: States, bucket: Store) -> None:
    session = uuid4()
    packed = gzip.compress(b"old", mtime=0)
    pointer = {
        "native": {"session": "acp", "epoch": 2},
        "turn_id": "t2",
        "sha256": hashlib.sha256(packed).hexdigest(),
        "bytes": len(packed),
        "older": ["t1"],
    }
    await bucket.put(f"{session}/state/pi/t2.tar.gz", packed)
    await bucket.put(f"{session}/state/pi/latest.json", json.dumps(pointer).encode())
    latest = await states.latest(session, "pi")
    assert latest is not None
    assert await states.fetch(session, "pi", latest) == b"old"
    stored = await states.put(request(session, 3), Native("acp", 3), b"new")
    assert stored.older == ("t2.tar.gz", "t1.tar.gz")


async def test_the_last_three_are_kept_and_older_ones_removed(
    states: States, bucket: Store
) -> None:
    session = uuid4()
    requests = [request(session, epoch) for epoch in range(1, 6)]
    stored = [await states.put(each, Native("acp", each.epoch), b"state") for each in requests]
    kept = await bucket.list(f"{session}/state/pi/")
    assert set(kept) == {each.name for each in stored[2:]} | {"latest.json"}


async def test_a_state_that_is_not_what_was_stored_is_broken(states: States, bucket: Store) -> None:
    session = uuid4()
    stored = await states.put(request(session, 1), Native("acp", 1), b"state")
    await bucket.put(f"{session}/state/pi/{stored.name}", b"other bytes")
    with pytest.raises(StateBroken):
        await states.fetch(session, "pi", stored)
