"""Lines of a run: numbers, malformed ones, batches."""

from __future__ import annotations

import asyncio
import json

import pytest

from api import lines as module
from api.lines import LineBuffer, Numbered, Numbering, decode_line
from contracts.errors import SidecarUnavailable
from contracts.events import Raw, dumps
from tests.support.api.fault_injector import event_line

BAD = b"{not json"


def text(n: int) -> bytes:
    return event_line(n, "message", role="assistant", text=str(n)).rstrip()


def shape(taken: list[Numbered]) -> list[tuple[int | None, str]]:
    return [(each.n, each.event.type) for each in taken]


def test_lines_seen_before_are_dropped() -> None:
    numbering = Numbering(2)
    assert shape(numbering.take([text(1), text(2), text(3), text(3), text(4), text(1)])) == [
        (3, "message"),
        (4, "message"),
    ]


def test_a_malformed_line_keeps_its_number() -> None:
    numbering = Numbering(0)
    assert shape(numbering.take([text(1), BAD])) == [(1, "message")]
    assert shape(numbering.take([text(3)])) == [(2, "raw"), (3, "message")]
    assert numbering.gap is None


def test_a_malformed_line_between_two_numbers_takes_none() -> None:
    numbering = Numbering(0)
    taken = numbering.take([text(1), BAD, b"more", text(3)])
    assert shape(taken) == [(1, "message"), (None, "raw"), (2, "raw"), (3, "message")]
    raw = taken[1].event
    assert isinstance(raw, Raw)
    assert raw.data == BAD.decode()


def test_a_gap_stops_at_the_last_good_line() -> None:
    numbering = Numbering(0)
    assert shape(numbering.take([text(1), text(4), text(5)])) == [(1, "message")]
    assert numbering.gap is not None
    assert (numbering.gap.details["after"], numbering.gap.details["got"]) == (1, 4)


def test_an_event_of_no_known_shape_becomes_raw_with_its_number() -> None:
    numbering = Numbering(0)
    line = dumps({"n": 1, "event": {"type": "turn.failed"}})
    ((_, kind),) = shape(numbering.take([line]))
    assert kind == "raw"


@pytest.mark.parametrize(
    "line",
    [b"", b"null", b"[]", b'{"n": "x", "event": {}}', b'{"n": 1}', b"\xff\xfe", b"[" * 100_000],
)
def test_what_is_not_a_line_is_none_and_never_raises(line: bytes) -> None:
    assert decode_line(line) is None


def test_numbers_that_json_does_not_have_are_kept_as_words() -> None:
    line = decode_line(b'{"n": 1, "event": {"type": "raw", "data": [NaN, -Infinity, 1e999, 1.5]}}')
    assert line is not None
    assert line.event["data"] == ["NaN", "-Infinity", "1e999", 1.5]
    json.loads(dumps(line.event), parse_constant=pytest.fail)


async def test_a_batch_takes_all_that_is_there_within_its_bounds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "BATCH_LINES", 3)
    monkeypatch.setattr(module, "BATCH_BYTES", 100)
    buffer = LineBuffer()
    for line in (b"1", b"2", b"3", b"4", b"x" * 200, b"5"):
        await buffer.put(line)
    await buffer.close()
    batches = [await buffer.take() for _ in range(4)]
    assert batches == [[b"1", b"2", b"3"], [b"4", b"x" * 200], [b"5"], []]


async def test_a_full_buffer_holds_the_reader_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BUFFER_BYTES", 10)
    buffer = LineBuffer()
    await buffer.put(b"x" * 10)
    async with asyncio.TaskGroup() as group:
        second = group.create_task(buffer.put(b"y"))
        for _ in range(10):
            await asyncio.sleep(0)
        assert not second.done()
        assert await buffer.take() == [b"x" * 10]
        await second
    assert await buffer.take() == [b"y"]


async def test_the_streams_error_comes_after_its_last_line() -> None:
    buffer = LineBuffer()
    await buffer.put(b"last")
    await buffer.close(SidecarUnavailable("cut"))
    assert await buffer.take() == [b"last"]
    with pytest.raises(SidecarUnavailable):
        await buffer.take()
