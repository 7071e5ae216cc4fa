"""Requests a harness makes on the side: titles, suggestions, summaries. Never a tool call."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from sidecar.gateway.scripted.conversation import Conversation, Said, newest_turn
from sidecar.gateway.scripted.reply import Reply, Text
from sidecar.gateway.scripted.script import recall

_TITLE_WORDS = 6
_TITLE_CHARS = 50
_LOOKED_AT = 20
_LOOKED_AT_CHARS = 4000
# How the prompt is wrapped in a request for a title.
_WRAPPED = re.compile(
    r"<session>\s*(?P<tagged>.*?)\s*</session>|User's first message:\s*(?P<rest>.*)", re.DOTALL
)
_SUGGESTION = re.compile(r"\A\[SUGGESTION MODE:")
# How claude, codex, opencode and pi ask for a summary that replaces the history.
_SUMMARY = re.compile(
    r"create a detailed summary of the"
    r"|performing a CONTEXT CHECKPOINT COMPACTION"
    r"|You are a context summarization (?:agent|assistant)"
)


def is_side(conversation: Conversation) -> bool:
    """Whether a request is one on the side, whoever answers it: by its words too, as codex and
    claude offer tools with some of them. Cheap, and never raises: a sandbox may send anything."""
    if conversation.schema is not None or not conversation.tools:
        return True
    words = _last_words(conversation)
    return bool(_SUGGESTION.match(words) or _SUMMARY.search(words))


def _last_words(conversation: Conversation) -> str:
    """The beginning of the newest prompt, as far as can be told without looking at much."""
    for item in reversed(conversation.items[-_LOOKED_AT:]):
        if isinstance(item, Said) and item.role == "user":
            text = item.text[:_LOOKED_AT_CHARS].lstrip()
            if text and not text.startswith("<system-reminder>"):
                return text
    return ""


def side_reply(conversation: Conversation) -> Reply | None:
    """The answer to a side request; None for a request of the user's own."""
    turn = newest_turn(conversation)
    if conversation.schema is not None:
        return _text(json.dumps(_filled(conversation.schema, _title(turn.prompt))))
    if _SUGGESTION.match(turn.prompt):
        return _text("what did I say?")
    if _SUMMARY.search(turn.prompt) or _SUMMARY.search(conversation.system):
        # pi and opencode put the whole conversation into the prompt itself
        return _text(recall(turn.history or (Said("user", turn.prompt),)))
    if not conversation.tools:
        return _text(_title(turn.prompt))
    return None


def _text(text: str) -> Reply:
    return Reply((Text(text),))


def _title(prompt: str) -> str:
    wrapped = _WRAPPED.search(prompt)
    words = (wrapped["tagged"] or wrapped["rest"] or "" if wrapped else prompt).split()
    title = " ".join(words[:_TITLE_WORDS])[:_TITLE_CHARS].strip()
    return title[:1].upper() + title[1:] if title else "Scripted session"


def _filled(schema: Mapping[str, Any], title: str) -> Any:
    """The least that fits the schema, with the title wherever it wants text."""
    kind = schema.get("type")
    if kind == "object":
        properties = schema.get("properties")
        known = properties if isinstance(properties, Mapping) else {}
        return {
            name: _filled(entry, title)
            for name, entry in known.items()
            if isinstance(entry, Mapping)
        }
    if schema.get("enum"):
        return schema["enum"][0]
    plain: dict[Any, Any] = {"array": [], "boolean": False, "integer": 0, "number": 0, "null": None}
    return plain.get(kind, title)
