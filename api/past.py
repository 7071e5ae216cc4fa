"""Earlier turns as a handoff needs them: short, and true about what was left out."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any

from api.db import past
from api.db.past import PastRow
from api.db.pool import Database
from api.db.turns import RunningTurn
from contracts.bodies import PastTurn

PROMPT_CHARS = 4_000
SAID_CHARS = 8_000
TITLE_CHARS = 200
TOOLS = 40
PATHS = 100
# All turns together, encoded; the oldest are left out first.
PAST_BYTES = 200_000

# In JSON, a character takes at most this much: a pair of escaped surrogates.
ESCAPED_CHARS = 12
# The longest start of a JSON string that is whole: no escape is cut in two.
HEAD = re.compile(r'"((?:[^"\\]|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))*)')


async def past_of(database: Database, turn: RunningTurn) -> tuple[list[PastTurn], int]:
    """The session's last turns before this one, oldest first, and how many there were in all.

    Raises: DatabaseUnavailable.
    """
    head_chars = (PROMPT_CHARS + 1) * ESCAPED_CHARS + 2
    async with database.connection() as conn:
        rows, turns_before = await past.last_turns(conn, turn.session_id, turn.epoch, head_chars)
    kept: list[PastTurn] = []
    size = 0
    for row in reversed(rows):
        told = _told(row)
        size += len(told.model_dump_json())
        if size > PAST_BYTES:
            break
        kept.append(told)
    kept.reverse()
    return kept, turns_before


def _told(row: PastRow) -> PastTurn:
    whole = _prompt(row.prompt_head)
    said: list[str] = []
    tools: list[str] = []
    paths: list[str] = []
    plan: list[Any] = []
    for body in row.events:
        # not through the models: they were checked when they were stored, and there are thousands
        event: dict[str, Any] = json.loads(body)
        match event:
            case {"type": "message", "role": "assistant", "text": text}:
                said.append(text)
            case {"type": "tool.call"}:
                tools += [event["title"][:TITLE_CHARS]] if event.get("title") else []
                paths += event.get("paths", [])
            case {"type": "tool.result"}:
                paths += [*event.get("paths", []), *_changed(event.get("diffs", []))]
            case {"type": "plan", "entries": entries}:
                plan = [entry for entry in entries if isinstance(entry, dict)]
            case _:
                pass
    whole_text, unique = "".join(said), list(dict.fromkeys(paths))
    fields = {
        "prompt": whole[:PROMPT_CHARS],
        "said": whole_text[-SAID_CHARS:],
        "tools": tools[-TOOLS:],
        "paths": unique[-PATHS:],
        "plan": plan,
        "error": json.loads(row.error).get("message") if row.error is not None else None,
    }
    over = (len(whole) > PROMPT_CHARS, len(whole_text) > SAID_CHARS, len(tools) > TOOLS)
    cut = row.unread or any(over) or len(unique) > PATHS
    return PastTurn(
        turn_id=row.turn_id,
        epoch=row.epoch,
        harness=row.harness,
        state=row.state,
        cut=cut,
        **_well_formed(fields),
    )


def _prompt(head: str) -> str:
    """As much of the prompt as the start of its JSON holds."""
    match = HEAD.match(head)
    return str(json.loads(f'"{match[1]}"')) if match is not None else ""


def _changed(diffs: Iterable[Any]) -> list[str]:
    named = [diff.get("path") for diff in diffs if isinstance(diff, dict)]
    return [path for path in named if isinstance(path, str)]


def _well_formed(value: dict[str, Any]) -> dict[str, Any]:
    """The same with U+FFFD for lone surrogates, which no JSON of the wire can carry."""
    text = json.dumps(value, ensure_ascii=False)
    sound = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    plain: dict[str, Any] = json.loads(sound)
    return plain
