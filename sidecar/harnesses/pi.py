"""pi, through pi-acp."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from sidecar.harnesses.acp import AcpConnection
from sidecar.harnesses.base import SCRIPTED_MODEL, Choice
from sidecar.harnesses.state import INTERRUPTED, Record, StatePaths, mend_jsonl


class Pi:
    name = "pi"
    title = "pi"
    family = "openai"
    efforts = ("off", "minimal", "low", "medium", "high", "xhigh")
    can_ask = False  # it has no such thing
    reload_after_cancel = False
    programs: tuple[str, ...] = ("pi-acp", "pi-coding-agent")
    titles: tuple[str, ...] = ("pi",)
    state = StatePaths(kept=(".pi/agent/sessions",))

    def mend(self, files: dict[str, bytes]) -> list[str]:
        return mend_jsonl(files, _closing)

    def home(self, gateway: str, choice: Choice) -> Mapping[str, str]:
        model = choice.model or SCRIPTED_MODEL
        models = {
            "providers": {
                "gateway": {
                    "baseUrl": f"{gateway}/v1",
                    "api": "openai-completions",
                    "apiKey": "GATEWAY_TOKEN",
                    "models": [
                        {
                            "id": model,
                            "name": model,
                            "reasoning": True,
                            "input": ["text"],
                            "contextWindow": 200_000,
                            "maxTokens": 32_000,
                            "cost": {"input": 0, "output": 0, "cacheRead": 0, "cacheWrite": 0},
                        }
                    ],
                }
            }
        }
        settings = {
            "defaultProvider": "gateway",
            "defaultModel": model,
            "quietStartup": True,
            # pi-acp calls a turn ended when its model fails, and pi would go on with it behind our
            # back: what can be asked again is asked again within the request.
            "retry": {"enabled": False, "provider": {"maxRetries": 4}},
        }
        return {
            ".pi/agent/models.json": json.dumps(models),
            ".pi/agent/settings.json": json.dumps(settings),
        }

    def env(self, gateway: str, token: str) -> Mapping[str, str]:
        return {"GATEWAY_TOKEN": token, "PI_OFFLINE": "1", "PI_SKIP_VERSION_CHECK": "1"}

    async def configure(
        self, acp: AcpConnection, opened: Mapping[str, Any], choice: Choice
    ) -> None:
        if choice.reasoning is not None:
            await acp.set_mode(choice.reasoning)


def _closing(records: Sequence[Record]) -> Iterator[Record]:
    """A result for every tool call that has none."""
    asked: dict[str, str] = {}
    parent = None
    for record in records:
        parent = record.get("id", parent)
        message = record.get("message")
        if not isinstance(message, dict):
            continue
        if message.get("role") == "toolResult":
            asked.pop(str(message.get("toolCallId")), None)
        content = message.get("content")
        for block in content if isinstance(content, list) else []:
            if isinstance(block, dict) and block.get("type") == "toolCall":
                asked[str(block.get("id"))] = str(block.get("name"))
    for call, name in asked.items():
        now = datetime.now(UTC)
        closing = {
            "type": "message",
            "id": secrets.token_hex(4),
            "parentId": parent,
            "timestamp": now.isoformat(timespec="milliseconds"),
            "message": {
                "role": "toolResult",
                "toolCallId": call,
                "toolName": name,
                "content": [{"type": "text", "text": INTERRUPTED}],
                "isError": True,
                "timestamp": int(now.timestamp() * 1000),
            },
        }
        parent = closing["id"]
        yield closing
