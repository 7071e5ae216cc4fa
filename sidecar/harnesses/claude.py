"""Claude Code, through claude-agent-acp, which runs the binary of its own SDK."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from sidecar.harnesses.acp import AcpConnection
from sidecar.harnesses.base import GATEWAY_TOKEN, Choice


class Claude:
    name = "claude"
    title = "Claude Code"
    family = "anthropic"
    efforts = ("low", "medium", "high")
    reload_after_cancel = False
    titles: tuple[str, ...] = ()

    def home(self, gateway: str, choice: Choice) -> Mapping[str, str]:
        settings = {} if choice.model is None else {"model": choice.model}
        return {".claude/settings.json": json.dumps(settings)}

    def env(self, gateway: str) -> Mapping[str, str]:
        return {
            "ANTHROPIC_BASE_URL": gateway,
            "ANTHROPIC_AUTH_TOKEN": GATEWAY_TOKEN,
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            "DISABLE_AUTOUPDATER": "1",
            "IS_SANDBOX": "1",
        }

    async def configure(
        self, acp: AcpConnection, opened: Mapping[str, Any], choice: Choice
    ) -> None:
        await acp.set_mode("bypassPermissions")
        if choice.reasoning is not None:
            await acp.set_option("effort", choice.reasoning)
