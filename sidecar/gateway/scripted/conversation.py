"""A request of any protocol, reduced to what the scripted model looks at."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Json = dict[str, Any]

# What a harness puts around the user's words, as blocks of their own inside user messages. A fixed
# list, because a user may well write about <b>tags</b>.
_CONTEXT_TAGS = (
    "command-args",
    "command-message",
    "command-name",
    "environment_context",
    "INSTRUCTIONS",
    "local-command-caveat",
    "local-command-stdout",
    "permissions instructions",
    "skills_instructions",
    "system-reminder",
    "total_tokens",
    "turn_aborted",
    "user_instructions",
)
_CONTEXT = re.compile(
    r"<(?P<tag>" + "|".join(_CONTEXT_TAGS) + r")>.*?</(?P=tag)>"
    r"|^# AGENTS\.md instructions[^\n]*$"
    r"|^\[Request interrupted by user[^\]\n]*\]$",
    re.DOTALL | re.MULTILINE,
)
_HANDOFF = re.compile(r"^--- prompt ---[ \t]*$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Said:
    role: Literal["user", "assistant"]
    text: str


@dataclass(frozen=True, slots=True)
class Called:
    """A tool call that an earlier reply made."""

    call_id: str
    name: str


@dataclass(frozen=True, slots=True)
class Returned:
    """What a tool gave back."""

    call_id: str
    text: str
    failed: bool = False


Item = Said | Called | Returned


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool the harness offers. A `free_text` one takes a program instead of JSON arguments."""

    name: str
    properties: Mapping[str, Any] = field(default_factory=dict)
    free_text: bool = False


@dataclass(frozen=True, slots=True)
class Conversation:
    items: tuple[Item, ...]
    tools: Mapping[str, Tool] = field(default_factory=dict)
    system: str = ""
    schema: Mapping[str, Any] | None = None  # the answer must be JSON of this schema


@dataclass(frozen=True, slots=True)
class Turn:
    """The newest prompt, all that came before it, and the tool results that followed it."""

    prompt: str
    history: tuple[Item, ...]
    results: tuple[Returned, ...]


def without_context(text: str) -> str:
    """The words of the user alone."""
    return without_blocks(text).strip()


def without_blocks(text: str) -> str:
    return _CONTEXT.sub("", text)


def newest_turn(conversation: Conversation) -> Turn:
    """Keyed on content: reminders and aborted-turn notes are user messages, but no prompts."""
    items = conversation.items
    for index in range(len(items) - 1, -1, -1):
        item = items[index]
        if not isinstance(item, Said) or item.role != "user":
            continue
        words = without_context(item.text)
        if not words:
            continue
        briefing, prompt = _split_handoff(words)
        history = (*items[:index], Said("user", briefing)) if briefing else items[:index]
        results = tuple(later for later in items[index + 1 :] if isinstance(later, Returned))
        return Turn(prompt=prompt, history=history, results=results)
    return Turn(prompt="", history=items, results=())


def _split_handoff(words: str) -> tuple[str, str]:
    marks = list(_HANDOFF.finditer(words))
    if not marks:
        return "", words
    return words[: marks[-1].start()].strip(), words[marks[-1].end() :].strip()


def dicts(value: Any) -> Iterator[Json]:
    """The objects in a list, whatever else a malformed request has in it."""
    if isinstance(value, list):
        yield from (entry for entry in value if isinstance(entry, dict))


def text_of(content: Any) -> str:
    """The text in a message's content, which is a string or a list of typed parts."""
    if isinstance(content, str):
        return content
    return "\n".join(part["text"] for part in dicts(content) if isinstance(part.get("text"), str))


def estimate_tokens(*values: Any) -> int:
    """Four characters a token, over every string in `values`."""
    characters, pending = 0, list(values)
    while pending:
        value = pending.pop()
        if isinstance(value, str):
            characters += len(value)
        elif isinstance(value, Mapping):
            pending.extend(value.values())
        elif isinstance(value, (list, tuple)):
            pending.extend(value)
    return (characters + 3) // 4
