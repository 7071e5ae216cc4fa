"""The page, at / and /static."""

from __future__ import annotations

from pathlib import Path

from fastapi import APIRouter
from fastapi.responses import FileResponse, Response
from starlette.middleware.gzip import GZipMiddleware
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

router = APIRouter(include_in_schema=False)

DIRECTORY = Path(__file__).parent.parent / "static"


class Revalidated(StaticFiles):
    """Kept by the browser, and asked for again each time: a new version is seen at once."""

    async def get_response(self, path: str, scope: Scope) -> Response:
        answer = await super().get_response(path, scope)
        answer.headers["Cache-Control"] = "no-cache"
        return answer


static = GZipMiddleware(Revalidated(directory=DIRECTORY), minimum_size=1000)


@router.get("/", response_class=FileResponse)
async def index() -> FileResponse:
    return FileResponse(DIRECTORY / "index.html", headers={"Cache-Control": "no-cache"})
