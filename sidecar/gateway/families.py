"""The two families of model API: their paths, their keys' headers, their error shapes."""

from __future__ import annotations

from typing import Any, Literal

from sidecar.gateway.scripted.anthropic import AnthropicMessages
from sidecar.gateway.scripted.chat import ChatCompletions
from sidecar.gateway.scripted.protocol import WireFormat
from sidecar.gateway.scripted.responses import OpenAIResponses

Family = Literal["anthropic", "openai"]

COUNT_TOKENS = "/v1/messages/count_tokens"
MODELS = "/v1/models"

FORMATS: dict[str, tuple[Family, WireFormat]] = {
    "/v1/messages": ("anthropic", AnthropicMessages()),
    COUNT_TOKENS: ("anthropic", AnthropicMessages()),
    "/v1/responses": ("openai", OpenAIResponses()),
    "/v1/chat/completions": ("openai", ChatCompletions()),
}

_ANTHROPIC_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    529: "overloaded_error",
}
_OPENAI_TYPES = {
    401: ("authentication_error", "invalid_api_key"),
    403: ("permission_error", None),
    404: ("invalid_request_error", "not_found"),
    429: ("rate_limit_error", "rate_limit_exceeded"),
}

SCRIPTED_MODEL = "scripted-1"


def error_body(
    family: Family, status: int, message: str, code: str | None = None
) -> dict[str, Any]:
    """An error as the family's vendor would put it; `code` where there is a place for one."""
    if family == "anthropic":
        fallback = "api_error" if status >= 500 else "invalid_request_error"
        kind = _ANTHROPIC_TYPES.get(status, fallback)
        return {"type": "error", "error": {"type": kind, "message": message}}
    default = ("server_error" if status >= 500 else "invalid_request_error", None)
    openai_kind, usual = _OPENAI_TYPES.get(status, default)
    return {
        "error": {"message": message, "type": openai_kind, "param": None, "code": code or usual}
    }


def key_header(family: Family, key: str) -> tuple[str, str]:
    return ("x-api-key", key) if family == "anthropic" else ("authorization", f"Bearer {key}")


def scripted_models(family: Family) -> dict[str, Any]:
    """The list of models when there is no key. The scripted model answers to any name."""
    name = SCRIPTED_MODEL
    if family == "anthropic":
        about = {"display_name": "Scripted model", "created_at": "1970-01-01T00:00:00Z"}
        data = [{"type": "model", "id": name, **about}]
        return {"data": data, "has_more": False, "first_id": name, "last_id": name}
    return {
        "object": "list",
        "data": [{"id": name, "object": "model", "created": 0, "owned_by": "holdfast"}],
    }
