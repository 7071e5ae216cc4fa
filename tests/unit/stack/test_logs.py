from __future__ import annotations

import contextlib
import json
from datetime import UTC, datetime
from pathlib import Path

import pytest

from stack.commands.terminal import safe
from stack.embedded import logs as module
from stack.embedded.logs import Line, Logs, format_line
from stack.logfiles import LogFiles
from stack.screen import LogView


def write(path: Path, second: int, text: str) -> None:
    at = datetime(2026, 1, 1, 0, 0, second, tzinfo=UTC)
    with path.open("a") as file:
        file.write(format_line(Line(path.stem, at, text)) + "\n")


def texts(lines: list[Line]) -> list[str]:
    return [line.text for line in lines]


def test_lines_of_all_parts_are_shown_in_the_order_of_time(tmp_path: Path) -> None:
    for second, part in enumerate(["api", "sidecar", "api", "stack"]):
        write(tmp_path / f"{part}.log", second, f"line {second}")
    assert texts(LogFiles(tmp_path, None).last(3)) == ["line 1", "line 2", "line 3"]
    assert texts(LogFiles(tmp_path, "api").last(9)) == ["line 0", "line 2"]
    assert LogFiles(tmp_path, None).last(0) == []


def test_following_loses_nothing_by_rotation_late_parts_and_half_lines(tmp_path: Path) -> None:
    api = tmp_path / "api.log"
    write(api, 0, "old")
    files = LogFiles(tmp_path, None)
    assert texts(files.last(5)) == ["old"]
    assert files.new() == []
    write(api, 1, "new")
    write(tmp_path / "sidecar.log", 2, "late part")
    assert texts(files.new()) == ["new", "late part"]
    with api.open("a") as file:
        file.write("2026-01-01T00:00:03+00:00 half a")
    assert files.new() == []
    with api.open("a") as file:
        file.write(" line\n")
    api.rename(tmp_path / "api.log.1")
    write(api, 4, "after rotation")
    assert texts(files.new()) == ["half a line", "after rotation"]
    assert files.new() == []


def test_files_are_rotated_at_their_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_FILE_BYTES", 2000)
    with contextlib.closing(Logs(tmp_path)) as logs:
        for number in range(400):
            logs.write("api", f"line {number}")
        assert logs.tail("api")[-1] == "line 399"
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["api.log", "api.log.1", "api.log.2", "api.log.3"]
    assert all(path.stat().st_size <= 2000 for path in tmp_path.iterdir())


def test_a_watcher_that_leaves_does_not_stop_the_logs(tmp_path: Path) -> None:
    seen = []

    def leaves(line: Line) -> None:
        seen.append(line.text)
        raise BrokenPipeError

    with contextlib.closing(Logs(tmp_path, leaves)) as logs:
        logs.write("api", "one")
        logs.write("api", "two")
    assert seen == ["one"]
    assert texts(LogFiles(tmp_path, "api").last(9)) == ["one", "two"]


def test_json_lines_read_well_on_a_terminal_and_stay_as_they_are_elsewhere(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = json.dumps(
        {"at": "x", "level": "warning", "logger": "api.x", "message": "hm", "turn_id": "t1"}
    )
    line = Line("api", datetime.now(UTC), text)
    LogView(as_json=False)(line)
    assert capsys.readouterr().out.endswith(f" api       │ {text}\n")
    monkeypatch.setenv("FORCE_COLOR", "1")
    LogView(as_json=False)(line)
    shown = safe(capsys.readouterr().out)
    assert "api       │ WARNING api.x: hm [turn=t1]" in shown
    LogView(as_json=True)(line)
    assert json.loads(capsys.readouterr().out)["log"]["turn_id"] == "t1"


def test_the_supervisors_own_lines_have_the_form_of_the_others(tmp_path: Path) -> None:
    with contextlib.closing(Logs(tmp_path, form="json")) as logs:
        logs.write("stack", "api: ready")
        logs.write("postgres", "plain")
    (line,) = (tmp_path / "stack.log").read_text().splitlines()
    written = json.loads(line.partition(" ")[2])
    assert (written["service"], written["message"]) == ("stack", "api: ready")
    assert (tmp_path / "postgres.log").read_text().endswith(" plain\n")
