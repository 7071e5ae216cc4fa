"""The user commands against a real server: what they print and how they exit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest
from typer.testing import Result

from contracts import errors, events
from tests.support.client.commands import GOOD, RECEIPT
from tests.support.client.wire_server import FakeApi, Fault, parse_lines
from tests.support.ports import closed_port

BAD = events.ErrorInfo(code="harness_exited", message="claude died", hint="run it again")


def test_a_turn_is_rendered_and_exits_with_0(api: FakeApi, invoke: Callable[..., Result]) -> None:
    api.script = list(GOOD)
    result = invoke("run", "go", "--harness", "pi")
    assert result.exit_code == 0, result.output
    assert "Hello [bold]there[/bold] :smile:\n" in result.stdout
    assert "● Bash: ls\n  a.txt\n  b.txt\n" in result.stdout
    assert "workspace by weed (geesefs is not installed), 0.5 s" in result.stdout
    assert "2 files verified: as the last receipt says" in result.stdout
    assert "✓ receipt: 2 files, 4.1 kB in the store by weed, manifest abababababab" in result.stdout
    assert "\x1b" not in result.stdout
    assert "> go" not in result.stdout
    assert next(iter(api.sessions.values())).harness == "pi"


@pytest.mark.parametrize(
    ("announced", "later", "told"),
    [
        (("Terminal", {}), ("echo hi", {"command": "echo hi"}), "● echo hi\n"),
        (("bash", {"command": "echo hi"}), (None, {"command": "echo hi"}), "● bash echo hi\n"),
        (("write", {}), ("write", {"filePath": "a.txt"}), "● write a.txt\n"),
        (("", {}), (None, None), "● tool\n"),
        (("shell", {"command": ["ls", "-l\x1b[2J"]}), (None, None), "● shell ls -l\n"),
    ],
)
def test_a_tool_call_is_told_once_and_by_what_it_does(
    api: FakeApi,
    invoke: Callable[..., Result],
    announced: tuple[str, dict[str, Any]],
    later: tuple[str | None, dict[str, Any] | None],
    told: str,
) -> None:
    api.script = [
        events.ToolCall(tool_call_id="t", title=announced[0], input=announced[1]),
        events.ToolUpdate(tool_call_id="t", title=later[0], input=later[1]),
        events.ToolUpdate(tool_call_id="t", status="in_progress"),
        events.ToolResult(tool_call_id="t", status="failed", output="no"),
        RECEIPT,
        events.TurnCompleted(),
    ]
    shown = invoke("run", "go").stdout
    assert told + "  ✗ failed\n  no\n" in shown
    assert shown.count("●") == 1


def test_a_turn_survives_a_broken_connection(api: FakeApi, invoke: Callable[..., Result]) -> None:
    api.script = list(GOOD)
    api.faults = [Fault("cut", serve=5)]
    result = invoke("run", "go")
    assert result.exit_code == 0
    assert result.stdout.count("Hello [bold]there") == 1


@pytest.mark.parametrize(
    ("script", "code", "told"),
    [
        ([events.TurnFailed(error=BAD)], 1, "✗ turn failed: claude died (harness_exited)"),
        ([events.TurnInterrupted(error=BAD)], 1, "✗ turn interrupted: claude died"),
        ([RECEIPT, events.TurnCancelled(reason="asked")], 130, "turn cancelled: asked"),
        ([events.TurnCompleted()], 1, "✗ no receipt"),
        ([RECEIPT, events.TurnCompleted(stop_reason="max_tokens")], 0, "turn ended: max_tokens"),
    ],
)
def test_the_exit_code_tells_how_a_turn_ended(
    api: FakeApi,
    invoke: Callable[..., Result],
    script: list[events.Event],
    code: int,
    told: str,
) -> None:
    api.script = script
    result = invoke("run", "go")
    assert result.exit_code == code
    assert told in result.stdout
    assert ("no receipt" in result.stdout) == (RECEIPT not in script)
    api.script = script
    assert invoke("run", "go", "--json").exit_code == code


def test_run_json_is_the_events_and_nothing_else(
    api: FakeApi, invoke: Callable[..., Result]
) -> None:
    api.script = list(GOOD)
    result = invoke("run", "go", "--json")
    lines = parse_lines(result.stdout)
    assert [line["seq"] for line in lines] == list(range(1, len(GOOD) + 3))
    assert lines[-1]["type"] == "turn.completed"
    assert "\x1b" not in result.stdout
    assert result.stderr == ""


def test_detach_starts_and_returns(api: FakeApi, invoke: Callable[..., Result]) -> None:
    session = api.add_session()
    result = invoke("run", "go", "--session", "last", "--detach")
    assert result.exit_code == 0
    turn = api.turns[UUID(result.stdout.strip())]
    assert turn.session_id == session.id
    assert api.asked("/events") == []


def test_show_tells_the_whole_story(api: FakeApi, invoke: Callable[..., Result]) -> None:
    api.script = list(GOOD)
    assert invoke("run", "first prompt").exit_code == 0
    result = invoke("show", "last")
    assert result.exit_code == 0
    assert "── claude on local" in result.stdout
    assert "> first prompt" in result.stdout
    assert len(parse_lines(invoke("show", "last", "--json").stdout)) == len(GOOD) + 2


def test_new_prints_the_id_alone(api: FakeApi, invoke: Callable[..., Result]) -> None:
    result = invoke("new", "--title", "mine", "--permissions", "ask")
    session = api.sessions[UUID(result.stdout.strip())]
    assert (session.title, session.permissions) == ("mine", "ask")
    assert parse_lines(invoke("new", "--json").stdout)[0]["harness"] == "claude"


def test_ls_shows_every_session_whole(api: FakeApi, invoke: Callable[..., Result]) -> None:
    assert invoke("ls").stdout == ""
    made = [api.add_session(title=f"t{n} \x1b[31m[red]") for n in range(3)]
    api.add_session(title="hidden", archived=True)
    result = invoke("ls")
    assert all(str(session.id) in result.stdout for session in made)
    assert "t1 [red]" in result.stdout
    assert "\x1b" not in result.stdout
    assert "hidden" not in result.stdout
    assert "hidden" in invoke("ls", "--archived").stdout
    (page,) = parse_lines(invoke("ls", "--json").stdout)
    assert len(page["sessions"]) == 3


def test_files_are_listed_and_printed_byte_for_byte(
    api: FakeApi, invoke: Callable[..., Result]
) -> None:
    content = b"\x00\xff\x1b[31m raw\n"
    api.add_session()
    api.files = {"a.bin": content}
    api.live_files = {"a.bin": b"newer"}
    assert "a.bin" in invoke("files", "last").stdout
    assert invoke("cat", "last", "a.bin").stdout_bytes == content
    assert invoke("cat", "last", "a.bin", "--live").stdout_bytes == b"newer"
    (told,) = parse_lines(invoke("cat", "last", "a.bin", "--json").stdout)
    assert (told["path"], told["size"]) == ("a.bin", len(content))
    (page,) = parse_lines(invoke("files", "last", "--json").stdout)
    assert page["entries"][0]["size"] == len(content)


def test_kill_and_rm_say_what_they_did(api: FakeApi, invoke: Callable[..., Result]) -> None:
    session = api.add_session()
    assert "killed sandbox box-1" in invoke("kill", "last").stdout
    refused = invoke("rm", str(session.id), stdin="n\n")
    assert refused.exit_code == 1
    assert session.id in api.sessions
    result = invoke("rm", str(session.id)[:13], stdin="y\n")
    assert (
        f"removed {session.id}: 1 sandbox, 3 objects, 4 state objects, 2 turns, 45 events"
        in result.stdout
    )
    assert session.id not in api.sessions
    api.add_session()
    (gone,) = parse_lines(invoke("rm", "last", "--yes", "--json").stdout)
    assert gone["objects"] == 3


def test_an_error_is_two_lines_on_stderr(api: FakeApi, invoke: Callable[..., Result]) -> None:
    result = invoke("show", "last")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == "error: there is no session yet\nhint: holdfast new\n"
    api.answers["/sessions"] = errors.UnknownHarness("no harness \x1b[31m[x]", hint="one of: pi")
    result = invoke("new", "--harness", "x")
    assert result.stderr == "error: no harness [x]\nhint: one of: pi\n"
    api.add_session()
    result = invoke("ls", url=f"http://127.0.0.1:{closed_port()}")
    assert result.stderr.endswith("hint: is the stack up? make up\n")
    assert result.exit_code == 1


def test_an_error_inside_a_turn_is_two_lines_too(
    api: FakeApi, invoke: Callable[..., Result]
) -> None:
    api.faults = [Fault("gap")]
    api.script = list(GOOD)
    result = invoke("run", "go")
    assert result.exit_code == 1
    assert "error: the transcript jumps from event 0 to 2" in result.stderr
    assert "Traceback" not in result.output
