"""ACP messages, as the four harnesses send them, into events."""

from __future__ import annotations

from typing import Any

from contracts import events
from sidecar.harnesses.normalise import Normaliser


def update(**fields: Any) -> dict[str, Any]:
    params = {"sessionId": "s", "update": fields}
    return {"jsonrpc": "2.0", "method": "session/update", "params": params}


def test_text_of_the_agent_is_a_message() -> None:
    content = {"type": "text", "text": "hello"}
    event = Normaliser().event(update(sessionUpdate="agent_message_chunk", content=content))
    assert isinstance(event, events.Message)
    assert (event.role, event.text) == ("assistant", "hello")


def test_a_thought_is_a_thought() -> None:
    content = {"type": "text", "text": "hm"}
    event = Normaliser().event(update(sessionUpdate="agent_thought_chunk", content=content))
    assert isinstance(event, events.Thought)


def test_a_tool_call_keeps_its_input_and_paths() -> None:
    event = Normaliser().event(
        update(
            sessionUpdate="tool_call",
            toolCallId="c1",
            title="write",
            kind="edit",
            rawInput={"path": "a"},
            locations=[{"path": "/workspace/a"}],
        )
    )
    assert isinstance(event, events.ToolCall)
    assert (event.input, event.paths) == ({"path": "a"}, ["/workspace/a"])


def test_claudes_output_comes_without_its_code_fence() -> None:
    content = [{"type": "content", "content": {"type": "text", "text": "```console\nhi\n```"}}]
    event = Normaliser().event(
        update(
            sessionUpdate="tool_call_update",
            toolCallId="c1",
            status="completed",
            content=content,
            rawOutput="hi",
        )
    )
    assert isinstance(event, events.ToolResult)
    assert event.output == "hi"


def test_codex_output_is_joined_from_its_deltas() -> None:
    normaliser = Normaliser()
    for piece in ("one\n", "two\n"):
        meta = {"terminal_output_delta": {"data": piece, "terminal_id": "c1"}}
        event = normaliser.event(
            update(sessionUpdate="tool_call_update", toolCallId="c1", _meta=meta)
        )
        assert isinstance(event, events.ToolUpdate)
        assert event.output_delta == piece
    end = normaliser.event(
        update(
            sessionUpdate="tool_call_update",
            toolCallId="c1",
            status="failed",
            rawOutput={"exit_code": 1},
        )
    )
    assert isinstance(end, events.ToolResult)
    assert (end.status, end.output) == ("failed", "one\ntwo\n")


def test_the_same_update_twice_is_one_event_and_an_empty_one_is_none() -> None:
    normaliser = Normaliser()
    pending = update(sessionUpdate="tool_call_update", toolCallId="c1", status="pending")
    assert normaliser.event(pending) is not None
    assert normaliser.event(pending) is None
    assert normaliser.event(update(sessionUpdate="tool_call_update", toolCallId="c2")) is None


def test_a_diff_is_kept() -> None:
    content = [{"type": "diff", "path": "/workspace/a", "oldText": "x", "newText": "y"}]
    event = Normaliser().event(
        update(
            sessionUpdate="tool_call_update", toolCallId="c", status="completed", content=content
        )
    )
    assert isinstance(event, events.ToolResult)
    assert event.diffs == [{"path": "/workspace/a", "old": "x", "new": "y"}]


def test_what_fits_no_schema_is_kept_raw() -> None:
    for message in (
        update(sessionUpdate="no_such_update", x=1),
        {"jsonrpc": "2.0", "method": "session/update", "params": "nonsense"},
        {"jsonrpc": "2.0", "method": "_vendor/news", "params": {}},
        {"unparsed": "not json"},
    ):
        event = Normaliser().event(message)
        assert isinstance(event, events.Raw)
        assert event.data == message


def test_chatter_is_not_kept() -> None:
    chatter = update(sessionUpdate="available_commands_update", availableCommands=[])
    assert Normaliser().event(chatter) is None
