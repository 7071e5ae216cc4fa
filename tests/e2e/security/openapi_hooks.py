"""What schemathesis does before each call, and a check of our own; it loads this by its name.

It runs in a process of its own, so that no other test pays for its imports.
"""

from __future__ import annotations

import contextlib
import os
from typing import Any
from uuid import UUID

import schemathesis

# A session and a turn that exist: with made-up ids every answer would be the same 404.
SESSION = os.environ["FUZZED_SESSION"]
TURN = os.environ["FUZZED_TURN"]
OPEN = ("GET", "/healthz")


@schemathesis.hook
def before_call(
    _context: schemathesis.HookContext, case: schemathesis.Case[Any], _kwargs: dict[str, Any]
) -> None:
    _point_at_what_exists(case)
    if case.query is not None and str(case.query.get("follow")).lower() in ("1", "true", "on"):
        case.query["follow"] = "false"  # it would never end
    if isinstance(case.body, dict):
        if case.operation.path == "/invoke" and case.body.get("session_id") is None:
            case.body["session_id"] = SESSION  # a sandbox for every example takes too long
        if case.operation.path == "/matrix/runs":
            case.body["harnesses"] = ["none"]  # a run takes minutes, and kills sandboxes


def _point_at_what_exists(case: schemathesis.Case[Any]) -> None:
    if case.operation.method.upper() == "DELETE" and case.operation.path == "/sessions/{sid}":
        return  # all other calls are about it
    for name, exists in (("sid", SESSION), ("tid", TURN)):
        given = (case.path_parameters or {}).get(name)
        with contextlib.suppress(ValueError):
            if isinstance(given, str) and UUID(given):
                case.path_parameters[name] = exists


@schemathesis.check
def nothing_without_a_token(
    _context: schemathesis.CheckContext,
    response: schemathesis.Response,
    case: schemathesis.Case[Any],
) -> None:
    """Only for the run without a token."""
    if (case.method.upper(), case.operation.path) == OPEN:
        return
    assert response.status_code == 401, f"{response.status_code}: {response.content[:200]!r}"
    assert set(response.json()) == {"error"}, response.content[:200]
