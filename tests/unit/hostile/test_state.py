"""What a sandbox hands over of itself: the state of its harness, and its messages."""

from __future__ import annotations

import gzip
import io
import json
import lzma
import sqlite3
import tarfile
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contracts import events
from sidecar.harnesses import registry as harnesses
from sidecar.harnesses.normalise import Normaliser
from sidecar.harnesses.opencode import DATABASE, Opencode
from sidecar.harnesses.state import StateBroken, read_tar, write_tar
from sidecar.harnesses.untrusted import parsed
from sidecar.runs.bounds import BURST_SECONDS, Pace

LEAVES = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20)
JSON = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=12,
)
# As odd, and quicker to make, for places of which there are many.
SHALLOW = LEAVES | st.lists(LEAVES, max_size=2) | st.dictionaries(st.text(max_size=8), LEAVES)


@pytest.mark.parametrize(
    "packed",
    [
        lambda data: gzip.compress(data, compresslevel=1),
        lambda data: lzma.compress(data, preset=0),
    ],
    ids=["gzip", "lzma"],
)
def test_a_state_that_is_compressed_is_not_unpacked(packed: Callable[[bytes], bytes]) -> None:
    tar = packed(write_tar({"a": bytes(24 << 20)}))
    tracemalloc.start()
    try:
        with pytest.raises(StateBroken):
            read_tar(tar)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 8 << 20


def test_a_file_that_is_larger_than_its_state_is_refused() -> None:
    """A sparse file of a terabyte takes a few bytes of a tar."""
    into = io.BytesIO()
    with tarfile.open(fileobj=into, mode="w", format=tarfile.PAX_FORMAT) as tar:
        info = tarfile.TarInfo("sparse")
        info.pax_headers = {
            "GNU.sparse.major": "0",
            "GNU.sparse.minor": "1",
            "GNU.sparse.name": "sparse",
            "GNU.sparse.size": str(1 << 40),
            "GNU.sparse.map": "0,0",
        }
        tar.addfile(info, io.BytesIO(b""))
    with pytest.raises(StateBroken):
        read_tar(into.getvalue())


@given(st.binary(max_size=2000))
def test_no_bytes_at_all_break_the_reader_of_states(data: bytes) -> None:
    try:
        found = read_tar(data)
    except StateBroken:
        return
    assert sum(map(len, found.values())) <= len(data)


IDS = st.sampled_from(["a", "b", 1, None])
CALLS = st.fixed_dictionaries(
    {},
    optional={
        "type": st.sampled_from(["tool_use", "tool_result", "toolCall", "text", 1]),
        "id": IDS,
        "tool_use_id": IDS,
        "name": SHALLOW,
    },
)
# What the harnesses write down, with every field there or not, and some of them odd.
RECORDS = st.fixed_dictionaries(
    {},
    optional={
        "type": st.sampled_from(["response_item", "message", "user", 1]),
        "uuid": IDS,
        "id": IDS,
        "ordinal": SHALLOW,
        "payload": st.fixed_dictionaries(
            {},
            optional={
                "type": st.sampled_from(["function_call", "function_call_output", "_call", 1]),
                "call_id": IDS,
            },
        )
        | SHALLOW,
        "message": st.fixed_dictionaries(
            {},
            optional={
                "role": st.sampled_from(["assistant", "toolResult", 1]),
                "toolCallId": IDS,
                "content": st.lists(CALLS | SHALLOW, max_size=3) | SHALLOW,
            },
        )
        | SHALLOW,
    },
)
LINES = st.one_of(
    RECORDS.map(json.dumps),
    SHALLOW.map(json.dumps),
    st.text(max_size=30),
    st.just("[" * 100_000),
)


@pytest.mark.parametrize("name", ["claude", "codex", "pi"])
@given(lines=st.lists(LINES, max_size=6), end=st.sampled_from(["", "\n", '\n{"torn": ']))
def test_no_record_of_a_harness_breaks_the_mending(name: str, lines: list[str], end: str) -> None:
    data = ("\n".join(lines) + end).encode("utf-8", "surrogatepass")
    harness = harnesses.get(name)
    files = {f"{kept}/x.jsonl": data for kept in harness.state.kept}
    harness.mend(files)
    once = dict(files)
    assert harness.mend(files) == []
    assert files == once


@pytest.mark.parametrize("name", ["claude", "codex", "pi"])
@given(records=st.lists(st.dictionaries(st.text(max_size=8), SHALLOW) | SHALLOW, max_size=4))
def test_a_whole_record_stays_as_it_is(name: str, records: list[Any]) -> None:
    data = "".join(json.dumps(record) + "\n" for record in records).encode()
    harness = harnesses.get(name)
    files = {f"{kept}/x.jsonl": data for kept in harness.state.kept}
    assert harness.mend(files) == []
    assert set(files.values()) == {data}


def test_a_database_that_never_ends_is_given_up(tmp_path: Path) -> None:
    path = tmp_path / "db"
    endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT i, i FROM n"
    with sqlite3.connect(path) as database:
        database.execute(f"CREATE VIEW part(id, data) AS {endless}")
    database.close()
    with pytest.raises(StateBroken):
        Opencode(mend_seconds=0.2).mend({DATABASE: path.read_bytes()})


@given(message=st.one_of(JSON, st.dictionaries(st.sampled_from(["method", "params", "id"]), JSON)))
def test_any_message_of_a_harness_becomes_an_event_that_can_be_stored(message: Any) -> None:
    found = parsed(json.dumps(message))
    event = Normaliser().event(found, "s")
    if event is not None:
        line = events.encode(event)
        assert events.decode(line).type == event.type  # type: ignore[attr-defined]


UPDATES = st.fixed_dictionaries(
    {
        "sessionUpdate": st.sampled_from(
            ["agent_message_chunk", "tool_call", "tool_call_update", "plan", "x"]
        )
    },
    optional={
        "content": JSON,
        "toolCallId": st.one_of(st.just("c"), SHALLOW),
        "title": st.one_of(st.just("t"), SHALLOW),
        "status": st.sampled_from(["completed", "failed", "pending", "x"]),
        "rawInput": SHALLOW,
        "rawOutput": SHALLOW,
        "entries": SHALLOW,
        "locations": SHALLOW,
        "_meta": st.one_of(SHALLOW, st.fixed_dictionaries({"terminal_output_delta": SHALLOW})),
    },
)


@given(updates=st.lists(UPDATES, max_size=5))
def test_any_update_of_a_harness_becomes_an_event_that_can_be_stored(updates: list[Any]) -> None:
    normaliser = Normaliser()
    for update in updates:
        params = {"sessionId": "s", "update": update}
        event = normaliser.event({"method": "session/update", "params": params}, "s")
        if event is not None:
            assert events.encode(event).endswith(b"\n")


def test_a_pace_lets_a_burst_through_and_slows_down_a_flood() -> None:
    now = 0.0
    pace = Pace(100, lambda: now)
    burst = int(100 * BURST_SECONDS)
    assert [pace.spend(1) for _ in range(burst)] == [0.0] * burst
    assert pace.spend(1) == pytest.approx(0.01)
    waited = 0.0
    for _ in range(1000):
        seconds = pace.spend(1)
        waited += seconds
        now += seconds
    assert waited == pytest.approx(10, rel=0.01)
    now += 3600
    assert [pace.spend(1) for _ in range(burst)] == [0.0] * burst
