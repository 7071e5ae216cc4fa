"""Claude Code, through claude-agent-acp, which runs the binary of its own SDK."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from sidecar.harnesses.acp import AcpConnection
from sidecar.harnesses.base import Choice
from sidecar.harnesses.state import INTERRUPTED, Record, StatePaths, mend_jsonl

# What its records have in common, whoever speaks.
ENVELOPE = ("isSidechain", "userType", "entrypoint", "cwd", "sessionId", "version", "gitBranch")


class Claude:
    name = "claude"
    title = "Claude Code"
    family = "anthropic"
    efforts = ("low", "medium", "high")
    can_ask = True
    reload_after_cancel = False
    programs: tuple[str, ...] = ("claude-agent-",)
    titles: tuple[str, ...] = ()
    state = StatePaths(kept=(".claude/projects",))

    def mend(self, files: dict[str, bytes]) -> list[str]:
        return mend_jsonl(files, _closing)

    def home(self, gateway: str, choice: Choice) -> Mapping[str, str]:
        settings = {} if choice.model is None else {"model": choice.model}
        return {".claude/settings.json": json.dumps(settings)}

    def env(self, gateway: str, token: str) -> Mapping[str, str]:
        return {
            "ANTHROPIC_BASE_URL": gateway,
            "ANTHROPIC_AUTH_TOKEN": token,
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            "DISABLE_AUTOUPDATER": "1",
            "IS_SANDBOX": "1",
        }

    async def configure(
        self, acp: AcpConnection, opened: Mapping[str, Any], choice: Choice
    ) -> None:
        await acp.set_mode("default" if choice.permissions == "ask" else "bypassPermissions")
        if choice.reasoning is not None:
            await acp.set_option("effort", choice.reasoning)


def _closing(records: Sequence[Record]) -> Iterator[Record]:
    """A result for every tool use that has none."""
    asked: dict[str, Record] = {}
    parent = None
    for record in records:
        parent = record.get("uuid", parent)
        for block in _blocks(record):
            if block.get("type") == "tool_use":
                asked[str(block.get("id"))] = record
            elif block.get("type") == "tool_result":
                asked.pop(str(block.get("tool_use_id")), None)
    for tool_use_id, record in asked.items():
        result = {
            "tool_use_id": tool_use_id,
            "type": "tool_result",
            "content": INTERRUPTED,
            "is_error": True,
        }
        closing = {
            **{name: record[name] for name in ENVELOPE if name in record},
            "parentUuid": parent,
            "type": "user",
            "message": {"role": "user", "content": [result]},
            "uuid": str(uuid.uuid4()),
            "timestamp": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "toolUseResult": INTERRUPTED,
        }
        parent = closing["uuid"]
        yield closing


def _blocks(record: Record) -> list[Record]:
    message = record.get("message")
    content = message.get("content") if isinstance(message, dict) else None
    return [b for b in content if isinstance(b, dict)] if isinstance(content, list) else []
