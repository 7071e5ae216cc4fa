"""pi, through pi-acp."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from sidecar.harnesses.acp import AcpConnection
from sidecar.harnesses.base import GATEWAY_TOKEN, SCRIPTED_MODEL, Choice


class Pi:
    name = "pi"
    title = "pi"
    family = "openai"
    efforts = ("off", "minimal", "low", "medium", "high", "xhigh")
    reload_after_cancel = False
    titles: tuple[str, ...] = ("pi",)

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
        settings = {"defaultProvider": "gateway", "defaultModel": model, "quietStartup": True}
        return {
            ".pi/agent/models.json": json.dumps(models),
            ".pi/agent/settings.json": json.dumps(settings),
        }

    def env(self, gateway: str) -> Mapping[str, str]:
        return {"GATEWAY_TOKEN": GATEWAY_TOKEN, "PI_OFFLINE": "1", "PI_SKIP_VERSION_CHECK": "1"}

    async def configure(
        self, acp: AcpConnection, opened: Mapping[str, Any], choice: Choice
    ) -> None:
        if choice.reasoning is not None:
            await acp.set_mode(choice.reasoning)
