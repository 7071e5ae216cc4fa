"""Anthropic Messages: `POST /v1/messages`."""

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
from sidecar.gateway.scripted.reply import Block, Reply, blocks

# A thinking block is signed by who made it; no one checks ours.
_SIGNATURE = "c2NyaXB0ZWQ="


class AnthropicMessages:
    def conversation(self, body: Json) -> Conversation:
        tools = {
            name: Tool(name, properties(tool.get("input_schema")))
            for tool in dicts(body.get("tools"))
            if isinstance(name := tool.get("name"), str)
        }
        items = [item for message in dicts(body.get("messages")) for item in _items(message)]
        return Conversation(
            items=tuple(items),
            tools=tools,
            system=text_of(body.get("system")),
            schema=_schema(body),
        )

    def tokens(self, body: Json) -> int:
        return estimate_tokens(body.get("system"), body.get("messages"), body.get("tools"))

    def stream(self, reply: Reply, body: Json) -> Iterator[Frame]:
        yield _event("message_start", message=self._message(body))
        for index, block in enumerate(blocks(reply)):
            yield _event("content_block_start", index=index, content_block=_opening(block))
            for delta, pause in _deltas(block):
                yield _event("content_block_delta", pause, index=index, delta=delta)
            yield _event("content_block_stop", index=index)
        yield _event(
            "message_delta",
            delta={"stop_reason": _stop_reason(reply), "stop_sequence": None},
            usage={"output_tokens": output_tokens(reply)},
        )
        yield _event("message_stop")

    def whole(self, reply: Reply, body: Json) -> Json:
        message = self._message(body)
        return message | {
            "content": [_content(block) for block in blocks(reply)],
            "stop_reason": _stop_reason(reply),
            "usage": message["usage"] | {"output_tokens": output_tokens(reply)},
        }

    def _message(self, body: Json) -> Json:
        return {
            "id": fresh_id("msg"),
            "type": "message",
            "role": "assistant",
            "model": model_name(body),
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": {
                "input_tokens": self.tokens(body),
                "cache_creation_input_tokens": 0,
                "cache_read_input_tokens": 0,
                "output_tokens": 0,
            },
        }


def _schema(body: Json) -> Json | None:
    config = body.get("output_config")
    wanted = config.get("format") if isinstance(config, dict) else None
    schema = wanted.get("schema") if isinstance(wanted, dict) else None
    return schema if isinstance(schema, dict) else None


def _items(message: Json) -> Iterator[Item]:
    role, content = message.get("role"), message.get("content")
    if role == "assistant":
        yield Said("assistant", text_of(content))
        for part in dicts(content):
            if part.get("type") == "tool_use":
                yield Called(str(part.get("id")), str(part.get("name")))
    elif role == "user":
        for part in dicts(content):
            if part.get("type") == "tool_result":
                yield Returned(
                    call_id=str(part.get("tool_use_id")),
                    text=text_of(part.get("content")),
                    failed=part.get("is_error") is True,
                )
        yield from _prompts(content)


def _prompts(content: Any) -> Iterator[Said]:
    """Each text by itself: claude puts prompts that got no answer and the next one together."""
    if isinstance(content, str):
        yield Said("user", content)
    for part in dicts(content):
        if isinstance(part.get("text"), str):
            yield Said("user", part["text"])


def _event(kind: str, pause: float = 0.0, **fields: Any) -> Frame:
    return sse({"type": kind, **fields}, named=True, pause=pause)


def _stop_reason(reply: Reply) -> str:
    return "tool_use" if called(reply) else "end_turn"


def _opening(block: Block) -> Json:
    if block.kind == "call":
        return {"type": "tool_use", "id": fresh_id("toolu"), "name": block.call.name, "input": {}}
    if block.kind == "thinking":
        return {"type": "thinking", "thinking": "", "signature": ""}
    return {"type": "text", "text": ""}


def _deltas(block: Block) -> Iterator[tuple[dict[str, str], float]]:
    if block.kind == "call":
        yield {"type": "input_json_delta", "partial_json": arguments_text(block.call)}, 0.0
        return
    for delta in block.deltas():
        if block.kind == "thinking":
            yield {"type": "thinking_delta", "thinking": delta.text}, delta.pause
        else:
            yield {"type": "text_delta", "text": delta.text}, delta.pause
    if block.kind == "thinking":
        yield {"type": "signature_delta", "signature": _SIGNATURE}, 0.0


def _content(block: Block) -> Json:
    if block.kind == "call":
        return _opening(block) | {"input": block.call.arguments}
    if block.kind == "thinking":
        return {"type": "thinking", "thinking": block.text(), "signature": _SIGNATURE}
    return {"type": "text", "text": block.text()}
