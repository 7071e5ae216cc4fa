"""How an error leaves the api: always `{"error": {code, message, hint, retryable, …}}`."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response

from contracts.errors import (
    BY_CODE,
    HoldfastError,
    InvalidInput,
    NotFound,
    RangeNotSatisfiable,
    TooLarge,
    Unauthenticated,
)

log = logging.getLogger(__name__)

# A body may be wrong in thousands of places; the first few say enough.
MAX_PROBLEMS = 10


class StrictJSONResponse(JSONResponse):
    """JSON that every parser takes: an agent's lone surrogates become U+FFFD.

    The transcript keeps them; its lines do not go through here.
    """

    def render(self, content: Any) -> bytes:
        text = json.dumps(content, ensure_ascii=False, separators=(",", ":"))
        try:
            return text.encode()
        except UnicodeEncodeError:
            return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace").encode()


def error_response(error: HoldfastError, headers: Mapping[str, str] | None = None) -> Response:
    """The one rendering of an error."""
    extra = dict(headers or {})
    if isinstance(error, Unauthenticated):
        extra["WWW-Authenticate"] = "Bearer"
    if isinstance(error, RangeNotSatisfiable) and "size" in error.details:
        extra["Content-Range"] = f"bytes */{error.details['size']}"
    return StrictJSONResponse({"error": error.body()}, status_code=error.status, headers=extra)


def from_validation(error: RequestValidationError) -> InvalidInput:
    """What is wrong with a request, without echoing what was sent."""
    problems = [
        {"at": ".".join(str(part) for part in problem["loc"]), "problem": str(problem["msg"])}
        for problem in error.errors()[:MAX_PROBLEMS]
    ]
    first = problems[0] if problems else {"at": "request", "problem": "malformed"}
    return InvalidInput(
        f"The request is not valid: {first['at']}: {first['problem']}.",
        hint="See /openapi.json for what this route takes.",
        problems=problems,
    )


async def _holdfast(_request: Request, error: Exception) -> Response:
    assert isinstance(error, HoldfastError)
    return error_response(error)


async def _validation(_request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    return error_response(from_validation(error))


async def _http(request: Request, error: Exception) -> Response:
    """Starlette's own errors: no such route, wrong method, a body that cannot be read."""
    assert isinstance(error, HTTPException)
    if error.status_code == TooLarge.status:
        return error_response(TooLarge(str(error.detail), hint="Send less."), error.headers)
    if error.status_code == NotFound.status:
        there_is = NotFound("There is no such route.", hint="See /openapi.json.")
        return error_response(there_is, error.headers)
    if error.status_code == InvalidInput.status:
        return error_response(InvalidInput(str(error.detail)), error.headers)
    code = "method_not_allowed" if error.status_code == 405 else "http_error"
    body = {
        "code": code,
        "message": f"{request.method} is not possible here: {error.detail}.",
        "hint": "See /openapi.json.",
        "retryable": False,
    }
    assert code not in BY_CODE
    return StrictJSONResponse(
        {"error": body}, status_code=error.status_code, headers=dict(error.headers or {})
    )


def install(app: FastAPI) -> None:
    """Render every error that a route can end with."""
    app.add_exception_handler(HoldfastError, _holdfast)
    app.add_exception_handler(RequestValidationError, _validation)
    app.add_exception_handler(HTTPException, _http)
