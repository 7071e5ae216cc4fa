"""An emulator of no cloud, to see what all of them do.

It runs as `python -m tests.support.emulators.bare ARGUMENTS`.

`POST /boxes/{name}` makes a box, `POST /boxes/{name}/pause` pauses it, `GET /boxes/{name}` tells
whether it runs.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from emulators.__main__ import parse, until_told
from emulators.boxes import Box, open_boxes
from emulators.faults import Faults, Faulty
from emulators.http_server import http_server
from emulators.options import Options, Ready


class Bare:
    """The `Levers`, too."""

    def __init__(self) -> None:
        self.boxes: dict[str, Box] = {}

    async def expire(self, sandbox: str) -> bool:
        box = self.boxes.get(sandbox)
        if box is not None:
            await box.stop()
        return box is not None

    async def delete(self, sandbox: str) -> bool:
        box = self.boxes.pop(sandbox, None)
        if box is not None:
            await box.destroy()
        return box is not None


@contextlib.asynccontextmanager
async def bare(options: Options) -> AsyncIterator[Ready]:
    async with open_boxes(options) as boxes:
        emulator = Bare()

        async def make(request: Request) -> Response:
            name = request.path_params["name"]
            emulator.boxes[name] = await boxes.create(name, {})
            return Response(status_code=201)

        async def pause(request: Request) -> Response:
            await emulator.boxes[request.path_params["name"]].pause()
            return Response(status_code=204)

        async def show(request: Request) -> Response:
            box = emulator.boxes.get(request.path_params["name"])
            if box is None:
                return Response(status_code=404)
            return PlainTextResponse("running" if box.running() else "stopped")

        routes = [
            Route("/boxes/{name}", make, methods=["POST"]),
            Route("/boxes/{name}/pause", pause, methods=["POST"]),
            Route("/boxes/{name}", show, methods=["GET"]),
        ]
        app = Faulty(Starlette(routes=routes), Faults(), emulator)
        async with http_server(app, options.host, options.port) as url:
            yield Ready(url, url)


if __name__ == "__main__":
    # a name is asked for, and of no use here
    _, given = parse(["e2b", *sys.argv[1:]])
    asyncio.run(until_told(bare(given)))
