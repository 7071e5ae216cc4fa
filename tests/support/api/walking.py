"""Every route of an app, by its template."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import pytest
from fastapi.routing import APIRoute
from starlette.routing import BaseRoute, Mount, Route
from uuid_utils.compat import uuid7

METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")


def templates(routes: Sequence[BaseRoute]) -> Iterator[tuple[str, str]]:
    """Method and template of each."""
    for route in routes:
        if isinstance(route, Mount):
            yield "GET", f"{route.path}/{{path:path}}"
        elif isinstance(route, APIRoute | Route):
            for method in sorted(route.methods or {"GET"}):
                yield method, route.path
        elif hasattr(route, "original_router"):  # how FastAPI keeps a router that was included
            yield from templates(route.original_router.routes)
        else:
            pytest.fail(f"a kind of route that this test does not know: {route!r}")


def address(template: str) -> str:
    """A path of that template, for which there is nothing."""
    path = re.sub(r"\{path:\w+\}", "a.txt", template)
    return re.sub(r"\{\w+\}", str(uuid7()), path)
