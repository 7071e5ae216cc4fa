"""OpenAI chat completions: `POST /v1/chat/completions`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from sidecar.gateway.scripted.conversation import (
    Called,
    Conversation,
    Item,
    Json,
    Returned,
    Said,
    Tool,
    dicts,
    estimate_tokens,
    text_of,
)
from sidecar.gateway.scripted.protocol import (
    Frame,
    arguments_text,
    called,
    fresh_id,
    model_name,
    output_tokens,
    properties,
    sse,
)
from sidecar.gateway.scripted.reply import Block, Call, Reply, blocks


class ChatCompletions:
    def conversation(self, body: Json) -> Conversation:
        messages = list(dicts(body.get("messages")))
        functions = [tool.get("function") for tool in dicts(body.get("tools"))]
        tools = {
            name: Tool(name, properties(function.get("parameters")))
            for function in functions
            if isinstance(function, dict) and isinstance(name := function.get("name"), str)
        }
        return Conversation(
            items=tuple(item for message in messages for item in _items(message)),
            tools=tools,
            system="\n".join(
                text_of(message.get("content"))
                for message in messages
                if message.get("role") in ("system", "developer")
            ),
            schema=_schema(body),
        )

    def tokens(self, body: Json) -> int:
        return estimate_tokens(body.get("messages"), body.get("tools"))

    def stream(self, reply: Reply, body: Json) -> Iterator[Frame]:
        head = _head(body, "chat.completion.chunk")

        def chunk(delta: Json, finish: str | None = None, pause: float = 0.0) -> Frame:
            choice = {"index": 0, "delta": delta, "finish_reason": finish}
            return sse(head | {"choices": [choice]}, named=False, pause=pause)

        yield chunk({"role": "assistant", "content": ""})
        calls = 0
        for block in blocks(reply):
            if block.kind == "call":
                yield chunk({"tool_calls": [{"index": calls, **_tool_call(block.call)}]})
                calls += 1
                continue
            for delta in block.deltas():
                yield chunk({_text_field(block): delta.text}, pause=delta.pause)
        yield chunk({}, _finish_reason(reply))
        if _wants_usage(body):
            yield sse(head | {"choices": [], "usage": self._usage(reply, body)}, named=False)
        yield Frame(b"data: [DONE]\n\n")

    def whole(self, reply: Reply, body: Json) -> Json:
        message: Json = {"role": "assistant", "content": None}
        for block in blocks(reply):
            if block.kind == "call":
                message.setdefault("tool_calls", []).append(_tool_call(block.call))
            else:
                field = _text_field(block)
                message[field] = (message.get(field) or "") + block.text()
        choice = {"index": 0, "message": message, "finish_reason": _finish_reason(reply)}
        head = _head(body, "chat.completion")
        return head | {"choices": [choice], "usage": self._usage(reply, body)}

    def _usage(self, reply: Reply, body: Json) -> Json:
        prompt, completion = self.tokens(body), output_tokens(reply)
        return {
            "prompt_tokens": prompt,
            "completion_tokens": completion,
            "total_tokens": prompt + completion,
        }


def _schema(body: Json) -> Json | None:
    wanted = body.get("response_format")
    named = wanted.get("json_schema") if isinstance(wanted, dict) else None
    schema = named.get("schema") if isinstance(named, dict) else None
    return schema if isinstance(schema, dict) else None


def _items(message: Json) -> Iterator[Item]:
    role, text = message.get("role"), text_of(message.get("content"))
    if role == "tool":
        yield Returned(str(message.get("tool_call_id")), text)
    elif role == "user":
        yield Said("user", text)
    elif role == "assistant":
        yield Said("assistant", text)
        for call in dicts(message.get("tool_calls")):
            function = call.get("function")
            name = function.get("name") if isinstance(function, dict) else None
            yield Called(str(call.get("id")), str(name))


def _head(body: Json, kind: str) -> Json:
    # `created` is 0: the renderers know no clock, and no harness reads it
    return {
        "id": fresh_id("chatcmpl"),
        "object": kind,
        "created": 0,
        "model": model_name(body),
    }


def _text_field(block: Block) -> str:
    # not OpenAI's own, but what servers with open reasoning send and opencode and pi understand
    return "reasoning_content" if block.kind == "thinking" else "content"


def _tool_call(call: Call) -> Json:
    function = {"name": call.name, "arguments": arguments_text(call)}
    return {"id": fresh_id("call"), "type": "function", "function": function}


def _finish_reason(reply: Reply) -> str:
    return "tool_calls" if called(reply) else "stop"


def _wants_usage(body: Json) -> bool:
    options: Any = body.get("stream_options")
    return isinstance(options, dict) and options.get("include_usage") is True
