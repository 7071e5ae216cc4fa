"""Codex, through codex-acp."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from contracts.bodies import Permissions
from sidecar.harnesses.acp import AcpConnection
from sidecar.harnesses.base import SCRIPTED_MODEL, Choice
from sidecar.harnesses.state import INTERRUPTED, Record, StatePaths, mend_jsonl

# Approval policy and own sandbox. `ask`: it may read; what writes it has to ask for, command by
# command, and runs it outside of its sandbox once that is allowed.
POLICIES: Mapping[Permissions, tuple[str, str]] = {
    "auto": ("never", "danger-full-access"),
    "ask": ("on-request", "read-only"),
}
# Its mode `agent` would have a model judge the requests, and nobody else.
MODES: Mapping[Permissions, str] = {"auto": "agent-full-access", "ask": "read-only"}


class Codex:
    name = "codex"
    title = "Codex"
    family = "openai"
    efforts = ("minimal", "low", "medium", "high")
    can_ask = True
    reload_after_cancel = True
    programs: tuple[str, ...] = ("codex",)
    titles: tuple[str, ...] = ()
    state = StatePaths(kept=(".codex/sessions",))

    def mend(self, files: dict[str, bytes]) -> list[str]:
        return mend_jsonl(files, _closing)

    def home(self, gateway: str, choice: Choice) -> Mapping[str, str]:
        policy, mode = POLICIES[choice.permissions]
        # JSON strings are TOML strings: quoting a model's name cannot break out.
        lines = [
            f"model = {json.dumps(choice.model or SCRIPTED_MODEL)}",
            'model_provider = "gateway"',
            f"approval_policy = {json.dumps(policy)}",
            f"sandbox_mode = {json.dumps(mode)}",
            "check_for_update_on_startup = false",
        ]
        if choice.reasoning is not None:
            lines.append(f"model_reasoning_effort = {json.dumps(choice.reasoning)}")
        lines += [
            "[model_providers.gateway]",
            'name = "gateway"',
            f"base_url = {json.dumps(gateway + '/v1')}",
            'env_key = "GATEWAY_TOKEN"',
            'wire_api = "responses"',
            "[analytics]",
            "enabled = false",
        ]
        return {".codex/config.toml": "\n".join(lines) + "\n"}

    def env(self, gateway: str, token: str) -> Mapping[str, str]:
        # codex-acp ignores approval_policy and sandbox_mode and starts in a mode whose own
        # sandbox fails every command where it cannot start, while the turn still ends well.
        return {"GATEWAY_TOKEN": token, "INITIAL_AGENT_MODE": "agent-full-access"}

    async def configure(
        self, acp: AcpConnection, opened: Mapping[str, Any], choice: Choice
    ) -> None:
        await acp.set_mode(MODES[choice.permissions])  # it does not survive a load


def _closing(records: Sequence[Record]) -> Iterator[Record]:
    """An output for every call that has none."""
    asked: dict[str, str] = {}
    for record in records:
        payload = record.get("payload")
        if not isinstance(payload, dict) or record.get("type") != "response_item":
            continue
        kind, call = str(payload.get("type")), str(payload.get("call_id"))
        if kind.endswith("_call") and "call_id" in payload:
            asked[call] = f"{kind}_output"
        elif kind.endswith("_call_output"):
            asked.pop(call, None)
    for number, (call, kind) in enumerate(asked.items(), start=1):
        closing: Record = {
            "timestamp": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "type": "response_item",
            "payload": {"type": kind, "call_id": call, "output": INTERRUPTED},
        }
        if isinstance(records[-1].get("ordinal"), int):
            closing["ordinal"] = records[-1]["ordinal"] + number
        yield closing
