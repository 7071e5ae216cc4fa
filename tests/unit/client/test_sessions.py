"""Sessions, and the short names a user may give them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest

from client import Holdfast
from contracts import errors
from tests.support.client.wire_server import FakeApi

A = UUID("0190a000-1111-7000-8000-000000000001")
B = UUID("0190a000-2222-7000-8000-000000000002")
OLD = UUID("0190b000-3333-7000-8000-000000000003")


@pytest.fixture
def three(api: FakeApi) -> FakeApi:
    now = datetime.now(UTC)
    api.add_session(B, updated_at=now - timedelta(hours=1))
    api.add_session(A, updated_at=now)
    api.add_session(OLD, archived=True, updated_at=now + timedelta(hours=1))
    return api


@pytest.mark.parametrize(
    ("ref", "expected"),
    [
        (str(A), A),
        (A.hex, A),
        ("0190a000-1", A),
        ("0190a0002", B),
        ("0190B", OLD),
        ("last", A),
    ],
)
async def test_a_session_is_found_by_what_names_only_it(
    three: FakeApi, hf: Holdfast, ref: str, expected: UUID
) -> None:
    three.page = 1
    assert (await hf.sessions.resolve(ref)).id == expected


async def test_a_prefix_of_two_is_refused_and_both_are_named(three: FakeApi, hf: Holdfast) -> None:
    with pytest.raises(errors.InvalidInput, match="2 sessions") as caught:
        await hf.sessions.resolve("0190a")
    assert str(A) in caught.value.hint
    assert str(B) in caught.value.hint


@pytest.mark.parametrize("ref", ["ffff", "nothing", "", "../x", str(UUID(int=7))])
async def test_a_name_of_nothing_is_not_found(three: FakeApi, hf: Holdfast, ref: str) -> None:
    with pytest.raises(errors.SessionNotFound):
        await hf.sessions.resolve(ref)


async def test_last_of_none_says_what_to_do(hf: Holdfast) -> None:
    with pytest.raises(errors.SessionNotFound) as caught:
        await hf.sessions.resolve("last")
    assert caught.value.hint == "holdfast new"


async def test_a_session_lives_its_life(api: FakeApi, hf: Holdfast) -> None:
    made = await hf.sessions.create(title="one", harness="pi", permissions="ask")
    assert (made.title, made.harness, made.permissions) == ("one", "pi", "ask")
    assert (await hf.sessions.rename(made.id, "two")).title == "two"
    assert (await hf.sessions.archive(made.id)).archived
    assert [each.id async for each in hf.sessions.list(archived=True)] == [made.id]
    assert (await hf.sessions.kill(made.id)).killed
    assert (await hf.sessions.delete(made.id)).objects == 3
    with pytest.raises(errors.SessionNotFound):
        await hf.sessions.get(made.id)
