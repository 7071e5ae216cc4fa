"""From ACP to our events. The agent's side is not trusted: what does not fit the schema is kept as
a `raw` event and never raises."""

from __future__ import annotations

import json
from typing import Any

from acp import schema
from pydantic import BaseModel, ValidationError

from contracts import events

# Chatter about the adapter itself, replays of our own prompt: nothing a transcript needs.
IGNORED = (
    schema.AvailableCommandsUpdate,
    schema.CurrentModeUpdate,
    schema.ConfigOptionUpdate,
    schema.SessionInfoUpdate,
    schema.UserMessageChunk,
)


def to_event(message: dict[str, Any]) -> events.EventBase | None:
    """The event for one message of the agent; None for what a transcript does not need."""
    if message.get("method") != "session/update":
        return events.Raw(source="acp", data=message)
    try:
        update = schema.SessionNotification.model_validate(message.get("params")).update
    except ValidationError:
        return events.Raw(source="acp", data=message)
    if isinstance(update, IGNORED):
        return None
    return _from_update(update) or events.Raw(source="acp", data=message)


def _from_update(update: BaseModel) -> events.EventBase | None:
    match update:
        case schema.AgentMessageChunk():
            return events.Message(role="assistant", text=_block_text(update.content))
        case schema.AgentThoughtChunk():
            return events.Thought(text=_block_text(update.content))
        case schema.ToolCallStart():
            return events.ToolCall(
                tool_call_id=update.tool_call_id,
                title=update.title,
                kind=update.kind or "other",
                input=update.raw_input,
                paths=_paths(update),
            )
        case schema.ToolCallProgress(status="completed" | "failed" as status):
            return events.ToolResult(
                tool_call_id=update.tool_call_id,
                status=status,
                output=_output(update),
                paths=_paths(update),
                diffs=_diffs(update),
            )
        case schema.ToolCallProgress():
            return events.ToolUpdate(
                tool_call_id=update.tool_call_id,
                title=update.title,
                status=update.status,
                input=update.raw_input,
                output=_output(update) or None,
            )
        case schema.AgentPlanUpdate():
            return events.Plan(entries=[entry.model_dump() for entry in update.entries])
        case schema.UsageUpdate():
            cost = update.cost.amount if update.cost else None
            return events.Usage(input_tokens=update.used, cost=cost)
    return None


def usage(result: dict[str, Any]) -> events.Usage | None:
    """The usage that some harnesses put into the answer to a prompt."""
    found = result.get("usage")
    if not isinstance(found, dict):
        return None

    def count(name: str) -> int:
        value = found.get(name)
        return value if isinstance(value, int) else 0

    return events.Usage(
        input_tokens=count("inputTokens"),
        output_tokens=count("outputTokens"),
        cached_tokens=count("cachedReadTokens"),
    )


def _block_text(block: Any) -> str:
    text = getattr(block, "text", None)
    if isinstance(text, str):
        return text
    return f"[{getattr(block, 'type', 'content')}]"


def _paths(update: schema.ToolCallStart | schema.ToolCallProgress) -> list[str]:
    return [location.path for location in update.locations or []]


def _output(update: schema.ToolCallProgress) -> str:
    texts = [
        _block_text(part.content)
        for part in update.content or []
        if isinstance(part, schema.ContentToolCallContent)
    ]
    if texts:
        return "\n".join(texts)
    raw = update.raw_output
    if raw is None:
        return ""
    return raw if isinstance(raw, str) else json.dumps(raw)


def _diffs(update: schema.ToolCallProgress) -> list[dict[str, Any]]:
    return [
        {"path": part.path, "old": part.old_text, "new": part.new_text}
        for part in update.content or []
        if isinstance(part, schema.FileEditToolCallContent)
    ]
