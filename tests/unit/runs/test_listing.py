"""The sandboxes of all providers: who is listed, who was asked, and what counts as ended."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast
from uuid import UUID, uuid4

import pytest

from contracts import events
from contracts.errors import SandboxError, Unreachable
from sidecar.providers.base import SandboxInfo, Status
from sidecar.runs import sandboxes
from sidecar.runs.live import Live, LiveSandboxes
from sidecar.runs.sandboxes import Providers, Sandboxes, Warmth

Memory = Callable[[], Awaitable[int]]


async def _little() -> int:
    return 5


async def _never() -> int:
    await asyncio.Event().wait()
    return 0


async def _nonsense() -> int:
    raise Unreachable("the sandbox broke off in processes: not a valid answer", op="processes")


class Fake:
    """A provider by the contract, whose answers a test chooses."""

    choice = type("C", (), {"name": "checkpoint"})

    def __init__(self, name: str, **boxes: Memory) -> None:
        self.name = name
        self.boxes = boxes
        self.trouble_now = ""
        self.list_error: SandboxError | None = None
        self.statuses: Iterator[Status] = iter(())
        self.released: list[str] = []
        self.destroyed: list[str] = []

    async def trouble(self) -> str:
        return self.trouble_now

    async def list(self, labels: Any) -> AsyncIterator[SandboxInfo]:
        made = datetime.now(UTC).isoformat()
        for name in self.boxes:
            yield SandboxInfo(name, {"session": str(uuid4())}, Status.RUNNING, made)
        if self.list_error is not None:
            raise self.list_error

    async def memory(self, sandbox_id: str) -> int:
        return await self.boxes[sandbox_id]()

    async def destroy(self, sandbox_id: str) -> bool:
        self.destroyed.append(sandbox_id)
        return True

    async def status(self, sandbox_id: str) -> Status:
        return next(self.statuses, Status.GONE)

    async def release(self, session_id: str, *, forget: bool = False) -> bool:
        self.released.append(session_id)
        return True


class Records:
    """LiveSandboxes, in memory."""

    def __init__(self) -> None:
        self.kept: dict[UUID, Live] = {}

    def all(self) -> list[Live]:
        return list(self.kept.values())

    def get(self, session_id: UUID) -> Live | None:
        return self.kept.get(session_id)

    def put(self, live: Live) -> None:
        self.kept[live.session_id] = live

    def drop(self, session_id: UUID) -> None:
        self.kept.pop(session_id, None)


def sandboxes_of(*providers: Fake, records: Records | LiveSandboxes | None = None) -> Sandboxes:
    by_name = {provider.name: cast(Any, provider) for provider in providers}
    live = cast(Any, records or Records())
    return Sandboxes(Providers(by_name, by_name), cast(Any, None), live, Warmth(0, 0))


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandboxes, "MEASURE_SECONDS", 0.2)
    monkeypatch.setattr(sandboxes, "GONE_SECONDS", 0.2)
    monkeypatch.setattr(sandboxes, "GONE_POLL_SECONDS", 0.01)


@pytest.mark.parametrize("hostile", [_nonsense, _never])
async def test_one_hostile_box_does_not_hide_the_others(hostile: Memory) -> None:
    boxes = sandboxes_of(Fake("local", hostile=hostile, honest=_little))
    async with asyncio.timeout(10):
        listed = await boxes.list(measure=True)
    found = {box.sandbox_id: box.memory for box in listed.sandboxes}
    assert found == {"hostile": None, "honest": 5}
    assert listed.asked == ["local"]


async def test_boxes_that_do_not_answer_are_waited_for_together() -> None:
    boxes = sandboxes_of(Fake("local", **{f"box-{n}": _never for n in range(50)}))
    async with asyncio.timeout(5):
        assert len((await boxes.list(measure=True)).sandboxes) == 50


async def test_a_provider_in_trouble_is_not_named_as_asked() -> None:
    local, e2b = Fake("local", here=_little), Fake("e2b", there=_little)
    e2b.trouble_now = "E2B_API_KEY is not set."
    listed = await sandboxes_of(local, e2b).list()
    assert listed.asked == ["local"]
    assert [box.sandbox_id for box in listed.sandboxes] == ["here"]


async def test_a_provider_that_breaks_off_its_listing_is_not_named_as_asked() -> None:
    local, e2b = Fake("local", here=_little), Fake("e2b", first_page=_little)
    e2b.list_error = Unreachable("E2B does not answer", op="list")
    listed = await sandboxes_of(e2b, local).list()
    assert listed.asked == ["local"]
    assert {box.sandbox_id for box in listed.sandboxes} == {"first_page", "here"}


async def told_by_end(provider: Fake, records: Records, live: Live) -> list[events.EventBase]:
    told: list[events.EventBase] = []

    async def emit(event: events.EventBase) -> None:
        told.append(event)

    await sandboxes_of(provider, records=records).end(live, emit)
    return told


async def test_a_box_is_destroyed_when_its_provider_says_that_it_is_gone() -> None:
    provider, records = Fake("local"), Records()
    live = Live(uuid4(), "local", "box", "mount")
    records.put(live)
    provider.statuses = iter([Status.RUNNING, Status.UNKNOWN, Status.GONE])
    (event,) = await told_by_end(provider, records, live)
    assert isinstance(event, events.SandboxDestroyed)
    assert event.proof == "status is gone"
    assert records.all() == []


@pytest.mark.parametrize("status", [each for each in Status if each is not Status.GONE])
async def test_a_box_that_is_not_gone_is_not_told_as_destroyed(status: Status) -> None:
    """Its record and its mount stay, so that the reaper tries again."""
    provider, records = Fake("local"), Records()
    live = Live(uuid4(), "local", "box", "mount")
    records.put(live)
    provider.statuses = iter(lambda: status, None)
    with pytest.raises(Unreachable):
        await told_by_end(provider, records, live)
    assert records.all() == [live]
    assert provider.released == []
    with pytest.raises(Unreachable):
        await sandboxes_of(provider, records=records).destroy("local", "box")
    with pytest.raises(Unreachable):
        await sandboxes_of(provider, records=records).kill(live.session_id)


async def test_a_box_that_should_not_stay_warm_and_does_not_end_is_left_to_the_reaper() -> None:
    provider, records = Fake("local"), Records()
    live = Live(uuid4(), "local", "box", "mount")
    provider.statuses = iter(lambda: Status.UNKNOWN, None)
    boxes = sandboxes_of(provider, records=records)
    with pytest.raises(Unreachable):
        await boxes.keep_warm(live, cast(Any, None))
    (kept,) = records.all()
    assert kept.warm_until is not None
    assert kept.warm_until <= datetime.now(UTC)


@pytest.mark.parametrize("first_try_fails", [False, True])
async def test_a_sandbox_whose_record_cannot_be_read_is_ended(
    tmp_path: Path, first_try_fails: bool
) -> None:
    provider, records = Fake("local", box=_little), LiveSandboxes(tmp_path)
    warm = Live(uuid4(), "local", "box", "mount").warm_for(600)
    records.put(warm)
    record = tmp_path / "live" / f"{warm.session_id}.json"
    record.write_bytes(record.read_bytes()[:20])
    if first_try_fails:
        provider.statuses = iter([Status.UNKNOWN] * 1000)
    reaping = asyncio.create_task(sandboxes_of(provider, records=records).reap())
    try:
        async with asyncio.timeout(10):
            while not provider.released:
                if len(provider.destroyed) > 1:
                    provider.statuses = iter(())
                await asyncio.sleep(0.01)
    finally:
        reaping.cancel()
    assert set(provider.destroyed) == {"box"}
    assert provider.released == [str(warm.session_id)]


async def test_a_sandbox_that_a_turn_made_after_the_record_was_lost_stays(tmp_path: Path) -> None:
    records = LiveSandboxes(tmp_path)
    live = Live(uuid4(), "local", "box", "mount")
    (tmp_path / "live" / f"{live.session_id}.json.broken").write_text("")
    assert records.list_lost() == {live.session_id}
    records.put(live)
    assert records.list_lost() == set()
