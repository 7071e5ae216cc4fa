"""What each of the three model protocols must do for the scripted model."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol
from uuid import uuid4

from sidecar.gateway.scripted.conversation import Conversation, Json, estimate_tokens
from sidecar.gateway.scripted.reply import Call, Reply, blocks


@dataclass(frozen=True, slots=True)
class Frame:
    """Bytes to send; the server waits `pause` seconds after sending them."""

    data: bytes
    pause: float = 0.0


class WireFormat(Protocol):
    def conversation(self, body: Json) -> Conversation:
        """Never raises: what is malformed in a body is left out."""

    def tokens(self, body: Json) -> int:
        """The estimated size of the request."""

    def stream(self, reply: Reply, body: Json) -> Iterator[Frame]:
        """The reply as server-sent events."""

    def whole(self, reply: Reply, body: Json) -> Json:
        """The reply as one JSON object."""


def sse(data: Json, *, named: bool, pause: float = 0.0) -> Frame:
    head = f"event: {data['type']}\n" if named else ""
    return Frame(f"{head}data: {dumps(data)}\n\n".encode(), pause)


def dumps(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))


def arguments_text(call: Call) -> str:
    return call.arguments if isinstance(call.arguments, str) else dumps(call.arguments)


def fresh_id(prefix: str) -> str:
    return f"{prefix}_{uuid4().hex}"


def model_name(body: Json) -> str:
    model = body.get("model")
    return model if isinstance(model, str) else "scripted-1"


def properties(schema: Any) -> Json:
    """The parameters in a tool's JSON schema, by name."""
    known = schema.get("properties") if isinstance(schema, dict) else None
    return known if isinstance(known, dict) else {}


def called(reply: Reply) -> bool:
    return any(isinstance(part, Call) for part in reply.parts)


def output_tokens(reply: Reply) -> int:
    return estimate_tokens(
        [
            arguments_text(block.call) if block.kind == "call" else block.text()
            for block in blocks(reply)
        ]
    )
