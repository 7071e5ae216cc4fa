"""OpenAI Responses: `POST /v1/responses`."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
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
    fresh_id,
    model_name,
    output_tokens,
    properties,
    sse,
)
from sidecar.gateway.scripted.reply import Block, Reply, blocks


class OpenAIResponses:
    def conversation(self, body: Json) -> Conversation:
        asked = body.get("input")
        entries = list(dicts(asked))
        if isinstance(asked, str):
            entries = [{"role": "user", "content": asked}]
        instructions = [
            text_of(entry.get("content"))
            for entry in entries
            if entry.get("role") in ("system", "developer")
        ]
        return Conversation(
            items=tuple(item for entry in entries for item in _items(entry)),
            tools={tool.name: tool for tool in _tools([body, *entries])},
            system="\n".join([text_of(body.get("instructions")), *instructions]),
            schema=_schema(body),
        )

    def tokens(self, body: Json) -> int:
        return estimate_tokens(body.get("instructions"), body.get("input"), body.get("tools"))

    def stream(self, reply: Reply, body: Json) -> Iterator[Frame]:
        numbers = count()

        def event(kind: str, pause: float = 0.0, **fields: Any) -> Frame:
            data = {"type": kind, "sequence_number": next(numbers), **fields}
            return sse(data, named=True, pause=pause)

        response = _response(body)
        yield event("response.created", response=response)
        yield event("response.in_progress", response=response)
        output: list[Json] = []
        for index, block in enumerate(blocks(reply)):
            item = _item(block)
            opened = item | {"status": "in_progress"} | _emptied(block)
            yield event("response.output_item.added", output_index=index, item=opened)
            for kind, pause, fields in _steps(block, item):
                yield event(kind, pause, item_id=item["id"], output_index=index, **fields)
            yield event("response.output_item.done", output_index=index, item=item)
            output.append(item)
        yield event("response.completed", response=self._completed(response, output, reply, body))

    def whole(self, reply: Reply, body: Json) -> Json:
        output = [_item(block) for block in blocks(reply)]
        return self._completed(_response(body), output, reply, body)

    def _completed(self, response: Json, output: list[Json], reply: Reply, body: Json) -> Json:
        asked, answered = self.tokens(body), output_tokens(reply)
        usage = {
            "input_tokens": asked,
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens": answered,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": asked + answered,
        }
        return response | {"status": "completed", "output": output, "usage": usage}


def _schema(body: Json) -> Json | None:
    text = body.get("text")
    wanted = text.get("format") if isinstance(text, dict) else None
    schema = wanted.get("schema") if isinstance(wanted, dict) else None
    return schema if isinstance(schema, dict) else None


def _tools(holders: list[Json]) -> Iterator[Tool]:
    """The tools of the request, and those that codex adds as items of its input."""
    for holder in holders:
        for tool in dicts(holder.get("tools")):
            name = tool.get("name")
            if tool.get("type") == "namespace":
                yield from _tools([tool])
            elif isinstance(name, str):
                custom = tool.get("type") == "custom"
                yield Tool(name, properties(tool.get("parameters")), free_text=custom)


def _items(entry: Json) -> Iterator[Item]:
    kind, role = entry.get("type", "message"), entry.get("role")
    if kind == "message" and role == "user":
        yield Said("user", text_of(entry.get("content")))
    elif kind == "message" and role == "assistant":
        yield Said("assistant", text_of(entry.get("content")))
    elif kind in ("function_call", "custom_tool_call"):
        yield Called(str(entry.get("call_id")), str(entry.get("name")))
    elif kind in ("function_call_output", "custom_tool_call_output"):
        yield Returned(str(entry.get("call_id")), text_of(entry.get("output")))


def _response(body: Json) -> Json:
    # `created_at` is 0: the renderers know no clock, and no harness reads it
    return {
        "id": fresh_id("resp"),
        "object": "response",
        "created_at": 0,
        "status": "in_progress",
        "model": model_name(body),
        "output": [],
    }


def _item(block: Block) -> Json:
    if block.kind == "thinking":
        summary = [{"type": "summary_text", "text": block.text()}]
        return {"type": "reasoning", "id": fresh_id("rs"), "summary": summary}
    if block.kind == "text":
        content = [{"type": "output_text", "text": block.text(), "annotations": []}]
        return {
            "type": "message",
            "id": fresh_id("msg"),
            "role": "assistant",
            "status": "completed",
            "content": content,
        }
    custom = isinstance(block.call.arguments, str)
    return {
        "type": "custom_tool_call" if custom else "function_call",
        "id": fresh_id("ctc" if custom else "fc"),
        "call_id": fresh_id("call"),
        "name": block.call.name,
        "input" if custom else "arguments": arguments_text(block.call),
        "status": "completed",
    }


def _emptied(block: Block) -> Json:
    """What an item does not have yet when it is announced."""
    if block.kind == "thinking":
        return {"summary": []}
    if block.kind == "text":
        return {"content": []}
    return {"input" if isinstance(block.call.arguments, str) else "arguments": ""}


def _steps(block: Block, item: Json) -> Iterator[tuple[str, float, Json]]:
    """How an item fills, as (event type, pause, fields)."""
    if block.kind == "thinking":
        yield from _summary(block, item["summary"][0])
    elif block.kind == "text":
        yield from _text(block, item["content"][0])
    elif isinstance(block.call.arguments, str):
        yield "response.custom_tool_call_input.delta", 0.0, {"delta": item["input"]}
        yield "response.custom_tool_call_input.done", 0.0, {"input": item["input"]}
    else:
        arguments = item["arguments"]
        yield "response.function_call_arguments.delta", 0.0, {"delta": arguments}
        yield "response.function_call_arguments.done", 0.0, {"arguments": arguments}


def _text(block: Block, part: Json) -> Iterator[tuple[str, float, Json]]:
    where = {"content_index": 0}
    yield "response.content_part.added", 0.0, where | {"part": part | {"text": ""}}
    for delta in block.deltas():
        yield "response.output_text.delta", delta.pause, where | {"delta": delta.text}
    yield "response.output_text.done", 0.0, where | {"text": part["text"]}
    yield "response.content_part.done", 0.0, where | {"part": part}


def _summary(block: Block, part: Json) -> Iterator[tuple[str, float, Json]]:
    where = {"summary_index": 0}
    yield "response.reasoning_summary_part.added", 0.0, where | {"part": part | {"text": ""}}
    for delta in block.deltas():
        yield "response.reasoning_summary_text.delta", delta.pause, where | {"delta": delta.text}
    yield "response.reasoning_summary_text.done", 0.0, where | {"text": part["text"]}
    yield "response.reasoning_summary_part.done", 0.0, where | {"part": part}
