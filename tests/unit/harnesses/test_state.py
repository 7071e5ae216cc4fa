"""A state that a sudden end has torn is mended; one that is whole is left alone, byte for byte."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from sidecar.harnesses.opencode import DATABASE
from sidecar.harnesses.registry import HARNESSES
from sidecar.harnesses.state import INTERRUPTED, StateBroken, read_tar, write_tar

CLAUDE: list[dict[str, Any]] = [
    {
        "uuid": "u1",
        "type": "user",
        "message": {"role": "user", "content": [{"type": "text", "text": "go"}]},
    },
    {
        "uuid": "u2",
        "parentUuid": "u1",
        "sessionId": "s",
        "cwd": "/session/workspace",
        "type": "assistant",
        "message": {"role": "assistant", "content": [{"type": "tool_use", "id": "t1"}]},
    },
]
CLAUDE_RESULT = {
    "uuid": "u3",
    "type": "user",
    "message": {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1"}]},
}
CODEX: list[dict[str, Any]] = [
    {"ordinal": 1, "type": "session_meta", "payload": {"id": "s"}},
    {
        "ordinal": 2,
        "type": "response_item",
        "payload": {"type": "function_call", "call_id": "t1", "name": "exec_command"},
    },
]
CODEX_RESULT = {
    "ordinal": 3,
    "type": "response_item",
    "payload": {"type": "function_call_output", "call_id": "t1", "output": "ok"},
}
PI: list[dict[str, Any]] = [
    {"type": "session", "id": "s"},
    {
        "type": "message",
        "id": "m1",
        "message": {
            "role": "assistant",
            "content": [{"type": "toolCall", "id": "t1", "name": "bash"}],
        },
    },
]
PI_RESULT = {
    "type": "message",
    "id": "m2",
    "message": {"role": "toolResult", "toolCallId": "t1", "content": []},
}
LOGS: dict[str, tuple[list[dict[str, Any]], dict[str, Any]]] = {
    "claude": (CLAUDE, CLAUDE_RESULT),
    "codex": (CODEX, CODEX_RESULT),
    "pi": (PI, PI_RESULT),
}
PATH = "sessions/log.jsonl"


def lines(*records: Any) -> bytes:
    return b"".join(json.dumps(record).encode() + b"\n" for record in records)


def mended(harness: str, data: bytes) -> tuple[list[dict[str, Any]], list[str]]:
    files = {PATH: data}
    notes = HARNESSES[harness].mend(files)
    return [json.loads(line) for line in files[PATH].splitlines()], notes


@pytest.mark.parametrize("harness", LOGS)
def test_a_whole_log_is_left_alone(harness: str) -> None:
    log, result = LOGS[harness]
    files = {PATH: lines(*log, result)}
    assert HARNESSES[harness].mend(files) == []
    assert files == {PATH: lines(*log, result)}


@pytest.mark.parametrize("harness", LOGS)
def test_a_torn_last_line_is_cut(harness: str) -> None:
    log, result = LOGS[harness]
    records, notes = mended(harness, lines(*log, result) + b'{"type":"mess')
    assert records == [*log, result]
    assert any("torn" in note for note in notes)


@pytest.mark.parametrize("harness", LOGS)
def test_a_last_line_without_its_newline_is_torn(harness: str) -> None:
    log, result = LOGS[harness]
    records, _ = mended(harness, lines(*log, result, {"type": "more"})[:-1])
    assert records == [*log, result]


@pytest.mark.parametrize("harness", LOGS)
def test_a_tool_call_without_a_result_gets_one(harness: str) -> None:
    log, _ = LOGS[harness]
    records, notes = mended(harness, lines(*log))
    assert records[:-1] == log
    assert INTERRUPTED in json.dumps(records[-1])
    assert "t1" in json.dumps(records[-1])
    assert any("never returned" in note for note in notes)


@pytest.mark.parametrize("harness", LOGS)
def test_what_was_mended_needs_no_mending(harness: str) -> None:
    log, _ = LOGS[harness]
    files = {PATH: lines(*log) + b'{"torn'}
    harness_ = HARNESSES[harness]
    harness_.mend(files)
    assert harness_.mend(files) == []


def test_claude_goes_on_from_the_closing_record() -> None:
    records, _ = mended("claude", lines(*CLAUDE))
    assert records[-1]["parentUuid"] == "u2"
    assert records[-1]["sessionId"] == "s"


def test_codex_numbers_the_closing_record() -> None:
    records, _ = mended("codex", lines(*CODEX))
    assert records[-1]["ordinal"] == 3


def database(tmp_path: Path, *statuses: str) -> bytes:
    path = tmp_path / "opencode.db"
    with closing(sqlite3.connect(path)) as made:
        made.execute("CREATE TABLE part (id text PRIMARY KEY, data text NOT NULL)")
        for number, status in enumerate(statuses):
            part = {"type": "tool", "callID": "t", "state": {"status": status, "input": {"a": 1}}}
            made.execute("INSERT INTO part VALUES (?, ?)", (f"p{number}", json.dumps(part)))
        made.execute("INSERT INTO part VALUES ('text', ?)", (json.dumps({"type": "text"}),))
        made.commit()
    return path.read_bytes()


def states(data: bytes, tmp_path: Path) -> list[dict[str, Any]]:
    path = tmp_path / "after.db"
    path.write_bytes(data)
    with closing(sqlite3.connect(path)) as opened:
        rows = opened.execute("SELECT data FROM part WHERE id <> 'text' ORDER BY id").fetchall()
    return [json.loads(row[0])["state"] for row in rows]


def test_opencode_closes_tools_that_never_returned(tmp_path: Path) -> None:
    files = {DATABASE: database(tmp_path, "completed", "running", "pending")}
    notes = HARNESSES["opencode"].mend(files)
    assert notes == ["closed 2 tool calls that never returned"]
    completed, *closed = states(files[DATABASE], tmp_path)
    assert completed["status"] == "completed"
    assert [state["status"] for state in closed] == ["error", "error"]
    assert closed[0]["error"] == INTERRUPTED
    assert closed[0]["input"] == {"a": 1}


def test_opencode_s_old_journal_cannot_undo_what_was_mended(tmp_path: Path) -> None:
    files = {DATABASE: database(tmp_path, "running"), f"{DATABASE}-wal": b""}
    HARNESSES["opencode"].mend(files)
    assert files[f"{DATABASE}-wal"] == b""


def test_a_whole_opencode_database_is_left_alone(tmp_path: Path) -> None:
    before = {DATABASE: database(tmp_path, "completed")}
    files = dict(before)
    assert HARNESSES["opencode"].mend(files) == []
    assert files == before


def test_an_unreadable_opencode_database_is_broken(tmp_path: Path) -> None:
    files = {DATABASE: b"not a database" * 100}
    with pytest.raises(StateBroken):
        HARNESSES["opencode"].mend(files)


def test_a_tar_comes_back_as_it_went() -> None:
    files = {"a/b.jsonl": b"one\n", "c": b"\0two"}
    assert read_tar(write_tar(files)) == files


def test_what_is_no_tar_is_a_broken_state() -> None:
    with pytest.raises(StateBroken):
        read_tar(b"nonsense" * 200)
