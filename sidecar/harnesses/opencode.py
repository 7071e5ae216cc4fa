"""opencode, which speaks ACP itself."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from sidecar.harnesses.acp import AcpConnection
from sidecar.harnesses.base import GATEWAY_TOKEN, SCRIPTED_MODEL, Choice


class Opencode:
    name = "opencode"
    title = "opencode"
    family = "openai"
    efforts = ("low", "medium", "high")
    reload_after_cancel = False
    titles: tuple[str, ...] = ()

    def home(self, gateway: str, choice: Choice) -> Mapping[str, str]:
        model = choice.model or SCRIPTED_MODEL
        config = {
            "$schema": "https://opencode.ai/config.json",
            "provider": {
                "gateway": {
                    "npm": "@ai-sdk/openai-compatible",
                    "name": "gateway",
                    "options": {"baseURL": f"{gateway}/v1", "apiKey": "{env:GATEWAY_TOKEN}"},
                    "models": {
                        model: {
                            "name": model,
                            "reasoning": True,
                            "variants": {
                                effort: {"reasoningEffort": effort} for effort in self.efforts
                            },
                            "limit": {"context": 200_000, "output": 32_000},
                        }
                    },
                }
            },
            "model": f"gateway/{model}",
            "small_model": f"gateway/{model}",
            "enabled_providers": ["gateway"],
            "autoupdate": False,
            "share": "disabled",
            "permission": {
                "edit": "allow",
                "bash": "allow",
                "webfetch": "allow",
                # `/workspace` is another name of the directory it works in.
                "external_directory": "allow",
            },
        }
        return {".config/opencode/opencode.json": json.dumps(config)}

    def env(self, gateway: str) -> Mapping[str, str]:
        return {
            "GATEWAY_TOKEN": GATEWAY_TOKEN,
            "OPENCODE_DISABLE_AUTOUPDATE": "1",
            "OPENCODE_DISABLE_MODELS_FETCH": "1",
            "OPENCODE_DISABLE_LSP_DOWNLOAD": "1",
        }

    async def configure(
        self, acp: AcpConnection, opened: Mapping[str, Any], choice: Choice
    ) -> None:
        if choice.reasoning is not None:  # its own default is the lowest
            await acp.set_option("effort", choice.reasoning)
