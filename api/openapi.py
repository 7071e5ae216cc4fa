"""What /openapi.json says of every route: how to log in, and how an error looks."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

# Needs no token.
OPEN = ("GET", "/healthz")
ERROR_REF = {"$ref": "#/components/schemas/Error"}
ERROR_SCHEMA = {
    "title": "Error",
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "description": "What happened and what to do; some carry more, such as `turn_id`.",
            "required": ["code", "message", "hint", "retryable"],
            "properties": {
                "code": {"type": "string"},
                "message": {"type": "string"},
                "hint": {"type": "string"},
                "retryable": {"type": "boolean"},
            },
        }
    },
}
SECURITY_SCHEMES = {
    "bearer": {
        "type": "http",
        "scheme": "bearer",
        "description": "A token. The page has a cookie instead, which the login link sets.",
    }
}
# FastAPI's own, with a schema of its own: here a request that is not valid is a 400 like any other.
NOT_OURS = ("HTTPValidationError", "ValidationError")


def describe(app: FastAPI) -> dict[str, Any]:
    """The document, made at the first call."""
    if app.openapi_schema is None:
        made = get_openapi(
            title=app.title, version=app.version, description=app.description, routes=app.routes
        )
        schemas = made.setdefault("components", {}).setdefault("schemas", {})
        for name in NOT_OURS:
            schemas.pop(name, None)
        schemas["Error"] = ERROR_SCHEMA
        made["components"]["securitySchemes"] = SECURITY_SCHEMES
        made["security"] = [{name: []} for name in SECURITY_SCHEMES]
        for path, operations in made["paths"].items():
            for method, operation in operations.items():
                _complete(operation, is_open=(method.upper(), path) == OPEN)
        app.openapi_schema = made
    return app.openapi_schema


def _complete(operation: dict[str, Any], *, is_open: bool) -> None:
    answers = operation["responses"]
    answers.pop("422", None)
    answers["default"] = _error("Anything else.")
    if is_open:
        operation["security"] = []
    else:
        answers["401"] = _error("Without a token that is valid.")
    if operation.get("parameters") or "requestBody" in operation:
        answers["400"] = _error("A request that is not valid.")


def _error(description: str) -> dict[str, Any]:
    return {"description": description, "content": {"application/json": {"schema": ERROR_REF}}}
