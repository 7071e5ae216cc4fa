"""The file that tells other commands of a running stack."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from stack.embedded.layout import DataFiles, Layout
from stack.embedded.part import PartState
from stack.embedded.state import StackState, myself, read_state, running_state, write_state
from stack.embedded.state_writer import StateWriter
from tests.support.services import until


def some_state(supervisor: dict[str, int | str]) -> StackState:
    return StackState(
        supervisor=supervisor,
        phase="ready",
        url="http://127.0.0.1:8000",
        engine="weed",
        engine_why="it is here",
        ports={"api": 8000},
        started_at=1.5,
        ready_after=2.5,
        parts=[PartState("api", "ready", pid=7, since=3.5)],
        error={"code": "x"},
    )


def test_a_state_comes_back_as_it_was_written(tmp_path: Path) -> None:
    state = some_state(myself())
    write_state(Layout(tmp_path, tmp_path), state)
    assert read_state(DataFiles(tmp_path)) == state
    assert running_state(DataFiles(tmp_path)) == state


def test_the_state_of_a_supervisor_that_died_is_not_a_running_one(tmp_path: Path) -> None:
    write_state(Layout(tmp_path, tmp_path), some_state({**myself(), "started": 1}))
    assert read_state(DataFiles(tmp_path)) is not None
    assert running_state(DataFiles(tmp_path)) is None


def test_fields_of_a_newer_release_are_ignored(tmp_path: Path) -> None:
    layout = Layout(tmp_path, tmp_path)
    write_state(layout, some_state(myself()))
    record = json.loads(layout.state.read_text())
    record["parts"][0]["mood"] = record["mood"] = "good"
    layout.state.write_text(json.dumps(record))
    assert read_state(layout) == some_state(myself())


@pytest.mark.parametrize("content", ["", "{", "[]", "null", "7", "{}", '{"parts": 3}'])
def test_a_file_that_is_no_state_is_none(tmp_path: Path, content: str) -> None:
    (tmp_path / "state.json").write_text(content)
    assert read_state(DataFiles(tmp_path)) is None


async def test_what_could_not_be_written_is_written_as_soon_as_it_can_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stack.embedded.state_writer.RETRY_SECONDS", 0.01)
    layout = Layout(tmp_path / "not there yet", tmp_path)
    writer = StateWriter(layout, some_state(myself()))
    writer.write()
    trying = asyncio.create_task(writer.keep_trying())
    try:
        layout.data.mkdir()
        await until(layout.state.exists, "the state is written")
        assert read_state(layout) == some_state(myself())
    finally:
        trying.cancel()
