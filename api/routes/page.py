"""The plain page, at / and /static."""

from __future__ import annotations

from pathlib import Path

from fastapi import APIRouter
from fastapi.responses import FileResponse
from starlette.staticfiles import StaticFiles

router = APIRouter(include_in_schema=False)

DIRECTORY = Path(__file__).parent.parent / "static"
static = StaticFiles(directory=DIRECTORY)


@router.get("/", response_class=FileResponse)
async def index() -> FileResponse:
    return FileResponse(DIRECTORY / "index.html", headers={"Cache-Control": "no-cache"})
