"""What a sandbox hands over of itself: the state of its harness, the answers of boxd."""

from __future__ import annotations

import gzip
import io
import json
import lzma
import sqlite3
import tarfile
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contracts import events
from contracts.errors import Unreachable
from sidecar.boxhost.contract import MountSick
from sidecar.boxhost.host_files import result_of
from sidecar.harnesses import opencode
from sidecar.harnesses import registry as harnesses
from sidecar.harnesses.normalise import Normaliser
from sidecar.harnesses.state import StateBroken, read_tar, write_tar
from sidecar.harnesses.untrusted import parsed
from sidecar.providers.boxd import Refused, answered
from sidecar.providers.boxd_files import BoxdFiles
from sidecar.providers.boxd_sandbox import asked
from sidecar.runs.bounds import BURST_SECONDS, Pace

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=12,
)


@pytest.mark.parametrize("packed", [gzip.compress, lzma.compress])
def test_a_state_that_is_compressed_is_not_unpacked(packed: Any) -> None:
    tar = packed(write_tar({"a": bytes(64 << 20)}))
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


@pytest.mark.parametrize("name", ["claude", "codex", "pi"])
@given(lines=st.lists(st.one_of(JSON.map(json.dumps), st.text(max_size=30)), max_size=6))
def test_no_record_of_a_harness_breaks_the_mending(name: str, lines: list[str]) -> None:
    deep = "[" * 100_000
    data = "\n".join([*lines, deep]).encode("utf-8", "surrogatepass")
    harness = harnesses.get(name)
    files = {f"{kept}/x.jsonl": data for kept in harness.state.kept}
    try:
        harness.mend(files)
    except (StateBroken, ValueError, AttributeError, LookupError, TypeError):
        return  # what the ladder takes for a broken state


def test_a_database_that_never_ends_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(opencode, "MEND_SECONDS", 0.2)
    path = tmp_path / "db"
    endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT i, i FROM n"
    with sqlite3.connect(path) as database:
        database.execute(f"CREATE VIEW part(id, data) AS {endless}")
    database.close()
    with pytest.raises(StateBroken):
        harnesses.get("opencode").mend({opencode.DATABASE: path.read_bytes()})


@given(line=st.one_of(JSON.map(lambda value: json.dumps(value).encode()), st.binary(max_size=60)))
def test_whatever_boxd_answers_is_an_answer_or_a_refusal(line: bytes) -> None:
    try:
        head = answered(line)
    except (ValueError, Refused):
        return
    assert 0 <= head["size"] <= 1 << 30


@pytest.mark.parametrize(
    "line",
    [
        b"[" * 100_000,
        b'{"size": ' + b"9" * 5000 + b"}",
        b'{"size": -1}',
        b'{"size": [1]}',
        b'{"size": {"a": 1}}',
        b"{}",
    ],
)
def test_an_answer_of_boxd_that_is_none_is_refused(line: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - all that is malformed is one thing there
        answered(line)


class Boxd:
    """Answers every call with the same."""

    def __init__(self, head: dict[str, Any], data: bytes = b"") -> None:
        self._answer = head, data

    async def call(self, op: str, body: bytes = b"", **fields: Any) -> Any:
        return self._answer


@given(answer=JSON)
async def test_whatever_the_walker_in_a_sandbox_answers_is_an_error_of_the_workspace(
    answer: Any,
) -> None:
    files = BoxdFiles(Boxd({}, json.dumps(answer).encode()))  # type: ignore[arg-type]
    try:
        await files.call("listing", bound=1, path="")
    except MountSick:
        return
    assert "ok" in answer


@given(answer=st.dictionaries(st.sampled_from(["ok", "error", "errno"]), JSON, min_size=1))
def test_a_walkers_error_is_told_whatever_it_is(answer: dict[str, Any]) -> None:
    if "error" not in answer:
        return
    with pytest.raises(MountSick):
        result_of(answer)


@given(value=JSON)
def test_what_boxd_says_of_processes_may_be_anything(value: Any) -> None:
    try:
        with asked("processes"):
            _ = [(str(each["token"]), int(each["pid"])) for each in value]
    except Unreachable:
        pass


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
        "toolCallId": st.one_of(st.just("c"), JSON),
        "title": st.one_of(st.just("t"), JSON),
        "status": st.sampled_from(["completed", "failed", "pending", "x"]),
        "rawInput": JSON,
        "rawOutput": JSON,
        "entries": JSON,
        "locations": JSON,
        "_meta": st.one_of(JSON, st.fixed_dictionaries({"terminal_output_delta": JSON})),
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
