"""The three protocols: what a client reads back from them, streamed or whole."""

from __future__ import annotations

import json
from typing import Any

import pytest

from sidecar.gateway.families import error_body
from sidecar.gateway.scripted.anthropic import AnthropicMessages
from sidecar.gateway.scripted.chat import ChatCompletions
from sidecar.gateway.scripted.conversation import Called, Json, Returned, Said
from sidecar.gateway.scripted.protocol import Frame, WireFormat
from sidecar.gateway.scripted.reply import (
    Call,
    ManyWords,
    Part,
    Reply,
    Text,
    Thinking,
    Ticks,
)
from sidecar.gateway.scripted.responses import OpenAIResponses

MESSAGES, RESPONSES, CHAT = AnthropicMessages(), OpenAIResponses(), ChatCompletions()
ASKED: Json = {"model": "m-1", "stream_options": {"include_usage": True}}

# (thinking, text, name of the tool, its arguments)
Heard = tuple[str, str, str | None, Any]


def events(frames: list[Frame]) -> list[Any]:
    """The data of server-sent events, and a check that each event's name is its type."""
    found: list[Any] = []
    for block in b"".join(frame.data for frame in frames).decode().split("\n\n")[:-1]:
        fields = dict(line.split(": ", 1) for line in block.split("\n"))
        if fields["data"] == "[DONE]":
            found.append(fields["data"])
            continue
        data: Json = json.loads(fields["data"])
        assert fields.get("event", data.get("type")) == data.get("type")
        found.append(data)
    return found


def hear_messages(stream: list[Any]) -> Heard:
    kinds = [event["type"] for event in stream]
    assert kinds[0] == "message_start"
    assert kinds[-2:] == ["message_delta", "message_stop"]
    blocks: dict[int, Json] = {}
    for event in stream:
        if event["type"] == "content_block_start":
            assert event["index"] == len(blocks)
            blocks[event["index"]] = event["content_block"] | {"input": ""}
        elif event["type"] == "content_block_delta":
            delta = event["delta"]
            block = blocks[event["index"]]
            for key in ("text", "thinking", "signature"):
                if key in delta:
                    block[key] += delta[key]
            block["input"] += delta.get("partial_json", "")
    stop = stream[-2]["delta"]["stop_reason"]
    assert stop == (
        "tool_use" if any(b["type"] == "tool_use" for b in blocks.values()) else "end_turn"
    )
    return hear_content([b | {"input": json.loads(b["input"] or "null")} for b in blocks.values()])


def hear_content(content: list[Json]) -> Heard:
    thinking = "".join(b["thinking"] for b in content if b["type"] == "thinking")
    text = "".join(b["text"] for b in content if b["type"] == "text")
    assert all(b["signature"] for b in content if b["type"] == "thinking")
    for block in content:
        if block["type"] == "tool_use":
            return thinking, text, block["name"], block["input"]
    return thinking, text, None, None


def hear_responses(stream: list[Any]) -> Heard:
    assert [event["sequence_number"] for event in stream] == list(range(len(stream)))
    assert stream[0]["type"] == "response.created"
    completed = stream[-1]["response"]
    assert completed["status"] == "completed"
    done = [e["item"] for e in stream if e["type"] == "response.output_item.done"]
    assert done == completed["output"]
    for item in done:
        pieces = "".join(
            event["delta"]
            for event in stream
            if event.get("item_id") == item["id"] and event["type"].endswith(".delta")
        )
        assert pieces == said_by(item)
    return hear_output(completed["output"])


def said_by(item: Json) -> str:
    if item["type"] == "reasoning":
        return str(item["summary"][0]["text"])
    if item["type"] == "message":
        return str(item["content"][0]["text"])
    return str(item.get("arguments") or item["input"])


def hear_output(output: list[Json]) -> Heard:
    thinking = "".join(said_by(item) for item in output if item["type"] == "reasoning")
    text = "".join(said_by(item) for item in output if item["type"] == "message")
    for item in output:
        if item["type"] == "function_call":
            return thinking, text, item["name"], json.loads(item["arguments"])
        if item["type"] == "custom_tool_call":
            return thinking, text, item["name"], item["input"]
    return thinking, text, None, None


def hear_chat(stream: list[Any]) -> Heard:
    assert stream[-1] == "[DONE]"
    assert stream[-2]["choices"] == []
    message: Json = {"content": "", "reasoning_content": "", "tool_calls": []}
    for chunk in stream[:-2]:
        delta = chunk["choices"][0]["delta"]
        for key in ("content", "reasoning_content"):
            message[key] += delta.get(key, "")
        message["tool_calls"] += delta.get("tool_calls", [])
    finish = stream[-3]["choices"][0]["finish_reason"]
    assert finish == ("tool_calls" if message["tool_calls"] else "stop")
    return hear_message(message)


def hear_message(message: Json) -> Heard:
    thinking, text = message.get("reasoning_content") or "", message["content"] or ""
    for call in message.get("tool_calls", []):
        function = call["function"]
        return thinking, text, function["name"], json.loads(function["arguments"])
    return thinking, text, None, None


def streamed(wire: WireFormat, reply: Reply) -> Heard:
    stream = events(list(wire.stream(reply, ASKED)))
    if wire is MESSAGES:
        return hear_messages(stream)
    return hear_responses(stream) if wire is RESPONSES else hear_chat(stream)


def whole(wire: WireFormat, reply: Reply) -> Heard:
    answer = json.loads(json.dumps(wire.whole(reply, ASKED)))
    assert answer["model"] == "m-1"
    if wire is MESSAGES:
        return hear_content(answer["content"])
    if wire is RESPONSES:
        return hear_output(answer["output"])
    return hear_message(answer["choices"][0]["message"])


ARGUMENTS = {"path": "ä/b", "content": 'x\n"y"\u2028'}
LONG = "A text that is longer than one delta, with ä, \U0001f980 and\nnew lines. " * 5
REPLIES: dict[str, tuple[tuple[Part, ...], Heard]] = {
    "text": ((Text(LONG),), ("", LONG, None, None)),
    "texts": ((Text("a"), Text("b")), ("", "a\n\nb", None, None)),
    "thought": ((Thinking("hm"), Text("a")), ("hm", "a", None, None)),
    "call": ((Call("write", ARGUMENTS),), ("", "", "write", ARGUMENTS)),
    "said-and-called": ((Text("a"), Call("w", {})), ("", "a", "w", {})),
    "words": ((ManyWords(3),), ("", "word-1 word-2 word-3", None, None)),
    "ticks": (
        (Ticks(1),),
        ("", "tick 1 of 2\ntick 2 of 2\nWaited 1 second.", None, None),
    ),
}
every_wire = pytest.mark.parametrize(
    "wire", [MESSAGES, RESPONSES, CHAT], ids=["messages", "responses", "chat"]
)


@every_wire
@pytest.mark.parametrize("name", REPLIES)
def test_a_client_hears_the_reply_streamed_and_whole(wire: WireFormat, name: str) -> None:
    said, heard = REPLIES[name]
    assert streamed(wire, Reply(said)) == heard
    assert whole(wire, Reply(said)) == heard


def test_a_program_is_a_custom_tool_call() -> None:
    reply = Reply((Call("exec", "text(1)"),))
    assert streamed(RESPONSES, reply) == ("", "", "exec", "text(1)")
    assert whole(RESPONSES, reply) == ("", "", "exec", "text(1)")


@every_wire
def test_every_word_is_a_delta_and_ticks_take_their_time(wire: WireFormat) -> None:
    few, many = (len(list(wire.stream(Reply((ManyWords(n),)), ASKED))) for n in (10, 110))
    assert many - few == 100
    pauses = [frame.pause for frame in wire.stream(Reply((Ticks(3),)), ASKED)]
    assert sum(pauses) == pytest.approx(3)
    assert max(pauses) <= 0.5


@every_wire
def test_two_replies_have_different_ids(wire: WireFormat) -> None:
    reply = Reply((Call("write", ARGUMENTS),))
    first, second = (json.dumps(wire.whole(reply, ASKED)) for _ in range(2))
    assert first != second


@every_wire
def test_usage_is_the_same_streamed_and_whole_and_is_a_quarter_of_the_characters(
    wire: WireFormat,
) -> None:
    asked = ASKED | {"messages": [{"role": "user", "content": "x" * 400}]}
    asked["input"] = asked["messages"]
    reply = Reply((Text("y" * 80),))
    last = [e for e in events(list(wire.stream(reply, asked))) if "usage" in str(e)][-1]
    answered = last.get("usage") or last["response"]["usage"]
    usage = wire.whole(reply, asked)["usage"]
    assert usage.get("input_tokens", usage.get("prompt_tokens")) == 101
    for found in (usage, answered):
        assert found.get("output_tokens", found.get("completion_tokens")) == 20


def test_chat_sends_usage_only_when_asked() -> None:
    stream = events(list(CHAT.stream(Reply((Text("a"),)), {})))
    assert all("usage" not in chunk for chunk in stream)


def test_messages_are_read_into_a_conversation() -> None:
    body = {
        "system": [{"type": "text", "text": "Be kind."}],
        "tools": [{"name": "Write", "input_schema": {"properties": {"file_path": {}}}}, "junk"],
        "output_config": {"format": {"type": "json_schema", "schema": {"type": "object"}}},
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "failed"}, {"text": "next"}]},
            {"role": "system", "content": "not said by anyone"},
            {
                "role": "assistant",
                "content": [
                    {"type": "text", "text": "so"},
                    {"type": "tool_use", "id": "t1", "name": "Write", "input": {}},
                ],
            },
            {
                "role": "user",
                "content": [
                    {
                        "type": "tool_result",
                        "tool_use_id": "t1",
                        "content": [{"type": "text", "text": "no"}],
                        "is_error": True,
                    },
                    {"type": "text", "text": "go on"},
                ],
            },
        ],
    }
    conversation = MESSAGES.conversation(body)
    assert conversation.items == (
        Said("user", "failed"),
        Said("user", "next"),
        Said("assistant", "so"),
        Called("t1", "Write"),
        Returned("t1", "no", failed=True),
        Said("user", "go on"),
    )
    assert set(conversation.tools["Write"].properties) == {"file_path"}
    assert conversation.system == "Be kind."
    assert conversation.schema == {"type": "object"}


def test_responses_are_read_into_a_conversation() -> None:
    nested = {
        "type": "namespace",
        "name": "functions",
        "tools": [{"type": "custom", "name": "exec"}],
    }
    body = {
        "instructions": "Be kind.",
        "tools": [
            {"type": "function", "name": "exec_command", "parameters": {"properties": {"cmd": {}}}},
            {"type": "web_search"},
        ],
        "text": {"format": {"type": "json_schema", "schema": {"type": "object"}}},
        "input": [
            {"type": "additional_tools", "role": "developer", "tools": [nested]},
            {"role": "developer", "content": [{"type": "input_text", "text": "Be brief."}]},
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hi"}]},
            {"type": "reasoning", "summary": []},
            {"type": "function_call", "call_id": "c1", "name": "exec_command", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c1", "output": "one"},
            {"type": "custom_tool_call", "call_id": "c2", "name": "exec", "input": "x"},
            {
                "type": "custom_tool_call_output",
                "call_id": "c2",
                "output": [{"type": "input_text", "text": "two"}],
            },
            {
                "type": "message",
                "role": "assistant",
                "content": [{"type": "output_text", "text": "so"}],
            },
        ],
    }
    conversation = RESPONSES.conversation(body)
    assert conversation.items == (
        Said("user", "hi"),
        Called("c1", "exec_command"),
        Returned("c1", "one"),
        Called("c2", "exec"),
        Returned("c2", "two"),
        Said("assistant", "so"),
    )
    assert conversation.tools["exec"].free_text
    assert not conversation.tools["exec_command"].free_text
    assert conversation.system.split() == ["Be", "kind.", "Be", "brief."]
    assert conversation.schema == {"type": "object"}


def test_a_response_to_plain_text_is_read_too() -> None:
    assert RESPONSES.conversation({"input": "hi"}).items == (Said("user", "hi"),)


def test_chat_is_read_into_a_conversation() -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "bash", "arguments": "{}"}}
    schema = {"type": "json_schema", "json_schema": {"schema": {"type": "object"}}}
    body = {
        "tools": [
            {
                "type": "function",
                "function": {"name": "bash", "parameters": {"properties": {"command": {}}}},
            }
        ],
        "response_format": schema,
        "messages": [
            {"role": "developer", "content": "Be kind."},
            {"role": "user", "content": [{"type": "text", "text": "hi"}]},
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "c1", "content": "out"},
        ],
    }
    conversation = CHAT.conversation(body)
    assert conversation.items == (
        Said("user", "hi"),
        Said("assistant", ""),
        Called("c1", "bash"),
        Returned("c1", "out"),
    )
    assert set(conversation.tools) == {"bash"}
    assert conversation.system == "Be kind."
    assert conversation.schema == {"type": "object"}


JUNK: list[Any] = [None, 7, "x", [], {}, [7, None, {"role": "user", "content": 7}], {"a": [1]}]


@every_wire
@pytest.mark.parametrize("junk", JUNK, ids=repr)
def test_a_malformed_request_is_read_as_far_as_it_goes(wire: WireFormat, junk: Any) -> None:
    keys = ("messages", "input", "tools", "system", "instructions", "text", "output_config")
    body = dict.fromkeys((*keys, "response_format", "model", "stream_options"), junk)
    wire.conversation(body)
    wire.tokens(body)
    assert list(wire.stream(Reply((Text("a"),)), body))


@pytest.mark.parametrize("status", [400, 401, 403, 404, 413, 429, 500, 503, 529])
def test_errors_have_the_shape_of_their_family(status: int) -> None:
    anthropic = error_body("anthropic", status, "no")
    assert anthropic["type"] == "error"
    assert anthropic["error"]["message"] == "no"
    assert anthropic["error"]["type"].endswith(("_error", "_large"))
    openai = error_body("openai", status, "no")["error"]
    assert openai["message"] == "no"
    assert openai.keys() == {"message", "type", "param", "code"}


def test_overload_and_limits_have_their_own_types() -> None:
    assert error_body("anthropic", 529, "")["error"]["type"] == "overloaded_error"
    assert error_body("anthropic", 429, "")["error"]["type"] == "rate_limit_error"
    assert error_body("openai", 429, "")["error"]["code"] == "rate_limit_exceeded"
