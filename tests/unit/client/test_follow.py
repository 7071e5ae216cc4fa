"""A transcript over a wire that breaks: every event once, none left out."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from uuid import UUID, uuid4

import pytest

from client import Holdfast, Patience
from contracts import errors
from contracts.events import Event, Message, TurnCompleted, encode
from tests.support.client.fixtures import QUICK
from tests.support.client.wire_server import TOKEN, FakeApi, Fault
from tests.support.ports import closed_port

COUNT = 8
BOUND_SECONDS = 20


@pytest.fixture
def sid(api: FakeApi) -> UUID:
    session = api.add_session()
    api.append(session.id, *(Message(role="assistant", text=f"part {n}") for n in range(COUNT)))
    return session.id


async def first(hf: Holdfast, sid: UUID, count: int, *, after: int = 0) -> list[Event]:
    """The first events of a live stream."""
    got: list[Event] = []
    async with asyncio.timeout(BOUND_SECONDS), aclosing(hf.events(sid, after=after)) as stream:
        async for event in stream:
            got.append(event)
            if len(got) == count:
                return got
    return got


def seqs(got: list[Event]) -> list[int | None]:
    return [event.seq for event in got]


ALL = list(range(1, COUNT + 1))


async def test_a_stream_cut_in_the_middle_resumes_without_doubling(
    api: FakeApi, hf: Holdfast, sid: UUID
) -> None:
    api.faults = [Fault("cut", serve=3), Fault("cut", serve=2)]
    assert seqs(await first(hf, sid, COUNT)) == ALL
    assert [each.split("after=")[1].split("&")[0] for each in api.asked("/events")] == [
        "0",
        "3",
        "5",
    ]


async def test_half_an_event_is_not_an_event(api: FakeApi, hf: Holdfast, sid: UUID) -> None:
    whole = encode(api.transcripts[sid][2])
    api.faults = [
        Fault("cut", serve=2, torn=whole[: len(whole) // 2]),
        # Cleanly closed, and the torn line even is valid JSON: only its newline is missing.
        Fault("close", serve=0, torn=whole.rstrip(b"\n")),
    ]
    got = await first(hf, sid, COUNT)
    assert seqs(got) == ALL
    assert [event.type for event in got] == ["message"] * COUNT


async def test_events_sent_again_are_not_yielded_again(
    api: FakeApi, hf: Holdfast, sid: UUID
) -> None:
    api.faults = [Fault("cut", serve=4), Fault("again")]
    assert seqs(await first(hf, sid, COUNT)) == ALL


async def test_a_gap_is_an_error_that_says_where(api: FakeApi, hf: Holdfast, sid: UUID) -> None:
    api.faults = [Fault("gap", serve=3)]
    assert seqs(await first(hf, sid, 3)) == [1, 2, 3]
    api.faults = [Fault("gap", serve=3)]
    with pytest.raises(errors.StreamGap, match="from event 3 to 5") as caught:
        await first(hf, sid, 4)
    assert caught.value.details == {"after": 3, "got": 5}


async def test_a_gap_after_a_reconnect_is_found_too(api: FakeApi, hf: Holdfast, sid: UUID) -> None:
    api.faults = [Fault("cut", serve=3), Fault("gap")]
    with pytest.raises(errors.StreamGap, match="from event 3 to 5"):
        await first(hf, sid, COUNT)


async def test_a_part_that_is_away_for_a_moment_is_waited_for(
    api: FakeApi, hf: Holdfast, sid: UUID
) -> None:
    api.faults = [
        Fault("refuse", error=errors.DatabaseUnavailable("restarting")),
        Fault("error", serve=2, error=errors.DatabaseUnavailable("restarting")),
        Fault("junk", serve=2),
        Fault("close", serve=1),
    ]
    assert seqs(await first(hf, sid, COUNT)) == ALL


async def test_an_error_that_will_not_pass_is_raised_at_once(
    api: FakeApi, hf: Holdfast, sid: UUID
) -> None:
    with pytest.raises(errors.SessionNotFound):
        await first(hf, uuid4(), 1)
    assert len(api.asked("/events")) == 1
    api.faults = [Fault("error", serve=1, error=errors.Unauthenticated("token changed"))]
    with pytest.raises(errors.Unauthenticated, match="token changed"):
        await first(hf, sid, COUNT)


async def test_patience_ends(api: FakeApi, hf: Holdfast, sid: UUID) -> None:
    api.faults = [Fault("close")] * 50
    with pytest.raises(errors.Unavailable, match="again and again"):
        await first(hf, sid, 1)
    assert len(api.asked("/events")) == QUICK.tries + 1


async def test_progress_renews_patience(api: FakeApi, hf: Holdfast, sid: UUID) -> None:
    away = Fault("refuse", error=errors.Unavailable("away"))
    for _ in range(COUNT):
        api.faults += [*[away] * (QUICK.tries - 1), Fault("cut", serve=1)]
    assert seqs(await first(hf, sid, COUNT)) == ALL


async def test_nobody_there_is_unavailable_with_a_hint() -> None:
    url = f"http://127.0.0.1:{closed_port()}"
    async with Holdfast(url, TOKEN, patience=QUICK) as hf:
        with pytest.raises(errors.Unavailable) as caught:
            await first(hf, uuid4(), 1)
    assert "make up" in caught.value.hint


async def test_a_stored_transcript_is_read_over_all_pages(
    api: FakeApi, hf: Holdfast, sid: UUID
) -> None:
    api.page = 3
    api.faults = [Fault("cut", serve=1)]
    assert seqs([event async for event in hf.events(sid, follow=False)]) == ALL
    assert seqs([event async for event in hf.events(sid, after=6, follow=False)]) == [7, 8]


async def test_new_events_reach_a_follower(api: FakeApi, hf: Holdfast, sid: UUID) -> None:
    async with asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(first(hf, sid, 2, after=COUNT))
        async with asyncio.timeout(BOUND_SECONDS):
            # The server runs in another thread: there is no event to wait for.
            while not api.asked("/events"):
                await asyncio.sleep(0.01)
        api.append(sid, Message(role="assistant", text="a"), Message(role="assistant", text="b"))
    assert seqs(waiting.result()) == [COUNT + 1, COUNT + 2]


@pytest.mark.parametrize("text", ["x" * 5_000_000, "nul \x00", "half \ud83d", "\u2028 \x85 \r"])
async def test_any_text_arrives_as_it_was(api: FakeApi, hf: Holdfast, text: str) -> None:
    sid = api.add_session().id
    api.append(sid, Message(role="assistant", text=text), Message(role="assistant", text="next"))
    got = await first(hf, sid, 2)
    assert [event.text for event in got if isinstance(event, Message)] == [text, "next"]


async def test_a_turn_ends_with_its_own_end(api: FakeApi, hf: Holdfast, sid: UUID) -> None:
    api.append(sid, TurnCompleted(), turn_id=uuid4())
    api.script = [Message(role="assistant", text="mine"), TurnCompleted()]
    api.faults = [Fault("cut", serve=2)]
    async with asyncio.timeout(BOUND_SECONDS):
        got = [event async for event in hf.turns.run(sid, "go")]
    assert [event.type for event in got] == [
        "turn.started",
        "message",
        "message",
        "turn.completed",
    ]
    assert len({event.turn_id for event in got}) == 1


async def test_the_end_of_another_turn_is_not_the_end(
    api: FakeApi, hf: Holdfast, sid: UUID
) -> None:
    turn = await hf.turns.start(sid, "go")
    api.append(sid, TurnCompleted(), turn_id=uuid4())
    api.append(sid, Message(role="assistant", text="mine"), TurnCompleted(), turn_id=turn.id)
    async with asyncio.timeout(BOUND_SECONDS):
        got = [event async for event in hf.turns.follow(turn)]
    assert [event.turn_id for event in got] == [turn.id] * 4


async def test_invoke_goes_on_after_a_broken_connection(api: FakeApi, hf: Holdfast) -> None:
    api.script = [Message(role="assistant", text="one"), TurnCompleted()]
    api.faults = [Fault("cut", serve=3)]
    async with asyncio.timeout(BOUND_SECONDS):
        got = [event async for event in hf.invoke("go", harness="pi")]
    assert seqs(got) == [1, 2, 3, 4]
    assert len(api.asked("/invoke")) == 1


def test_pauses_grow_to_a_bound() -> None:
    patience = Patience(tries=100, first=0.1, longest=5.0)
    assert all(patience.pause(n) <= 5.0 for n in range(1, 2000))
    assert patience.pause(1) <= 0.1
    assert patience.pause(100) >= 2.5
