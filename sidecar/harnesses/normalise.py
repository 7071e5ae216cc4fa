"""From ACP to our events. The agent's side is not trusted: what does not fit the schema is kept as
a `raw` event and never raises."""

from __future__ import annotations

import json
from collections import defaultdict
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
    schema.UsageUpdate,  # how full the context is; what was used is counted at the gateway
    schema.UserMessageChunk,
)


# What is remembered of tool calls: to tell a repetition, and to put a streamed output together.
MOST_REMEMBERED = 1000
MOST_REMEMBERED_CHARS = 65_536
MOST_COLLECTED_CHARS = 16 << 20
LEFT_OUT = "\n[the rest is in the updates before this result]"
MOST_TOKENS = 2**53


class Normaliser:
    """One turn's messages into events; remembers what a tool call said before."""

    def __init__(self) -> None:
        self._outputs: defaultdict[str, list[str]] = defaultdict(list)
        self._chars = 0  # of all outputs
        self._updates: dict[str, events.ToolUpdate] = {}

    def recall(self, event: events.EventBase) -> None:
        """Know again what another normaliser said before us in the same turn."""
        if isinstance(event, events.ToolUpdate):
            self._remember(event)
            if event.output_delta is not None:
                self._collect(event.tool_call_id, event.output_delta)

    def event(self, message: dict[str, Any], session: str | None = None) -> events.EventBase | None:
        """The event for one message of the agent; None for what a transcript does not need. With a
        `session`, what is said of another one of the agent's is no part of the conversation."""
        raw = events.Raw(source="acp", data=message)
        if message.get("method") != "session/update":
            return raw
        try:
            told = schema.SessionNotification.model_validate(message.get("params"))
        except (ValidationError, RecursionError):
            return raw
        if session is not None and told.session_id != session:
            return raw
        update = told.update
        if isinstance(update, IGNORED):
            return None
        if isinstance(update, schema.ToolCallProgress):
            return self._progress(update)
        return _from_update(update) or raw

    def _progress(self, update: schema.ToolCallProgress) -> events.EventBase | None:
        call = update.tool_call_id
        delta = _terminal_delta(update)
        if delta is not None:
            self._collect(call, delta)
        if update.status == "completed" or update.status == "failed":
            return events.ToolResult(
                tool_call_id=call,
                status=update.status,
                output=self._collected(call) or _output(update),
                paths=_paths(update),
                diffs=_diffs(update),
            )
        event = events.ToolUpdate(
            tool_call_id=call,
            title=update.title,
            status=update.status,
            input=update.raw_input,
            output=_output(update) or None,
            output_delta=delta,
        )
        # Some harnesses say the same thing several times, or nothing that is for us.
        before = self._updates.get(call, events.ToolUpdate(tool_call_id=call))
        self._remember(event)
        return None if delta is None and _same(before, event) else event

    def _remember(self, event: events.ToolUpdate) -> None:
        self._updates.pop(event.tool_call_id, None)
        if len(event.output or "") <= MOST_REMEMBERED_CHARS:
            self._updates[event.tool_call_id] = event
        if len(self._updates) > MOST_REMEMBERED:
            del self._updates[next(iter(self._updates))]

    def _collect(self, call: str, delta: str) -> None:
        self._chars += len(delta)
        if self._chars <= MOST_COLLECTED_CHARS:
            self._outputs[call].append(delta)
        elif self._outputs[call][-1:] != [LEFT_OUT]:
            self._outputs[call].append(LEFT_OUT)

    def _collected(self, call: str) -> str:
        """All output of a call, which is over."""
        whole = "".join(self._outputs.pop(call, []))
        self._chars = sum(len(piece) for pieces in self._outputs.values() for piece in pieces)
        return whole


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
        case schema.AgentPlanUpdate():
            return events.Plan(entries=[entry.model_dump() for entry in update.entries])
    return None


def _same(one: events.ToolUpdate, other: events.ToolUpdate) -> bool:
    return one.model_copy(update={"at": other.at}) == other


def _block_text(block: Any) -> str:
    text = getattr(block, "text", None)
    if isinstance(text, str):
        return text
    return f"[{getattr(block, 'type', 'content')}]"


def _paths(update: schema.ToolCallStart | schema.ToolCallProgress) -> list[str]:
    return [location.path for location in update.locations or []]


def _terminal_delta(update: schema.ToolCallProgress) -> str | None:
    """codex streams a command's output beside the message, in its metadata."""
    found = (update.field_meta or {}).get("terminal_output_delta")
    data = found.get("data") if isinstance(found, dict) else None
    return data if isinstance(data, str) else None


def _output(update: schema.ToolCallProgress) -> str:
    raw = update.raw_output
    if isinstance(raw, str):  # without the code fences that claude puts around it in the content
        return raw
    texts = [
        _block_text(part.content)
        for part in update.content or []
        if isinstance(part, schema.ContentToolCallContent)
    ]
    if texts or raw is None:
        return "\n".join(texts)
    return json.dumps(raw)


def _diffs(update: schema.ToolCallProgress) -> list[dict[str, Any]]:
    return [
        {"path": part.path, "old": part.old_text, "new": part.new_text}
        for part in update.content or []
        if isinstance(part, schema.FileEditToolCallContent)
    ]
