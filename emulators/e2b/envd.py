"""envd, the agent inside every sandbox of E2B, as an ASGI app."""

from __future__ import annotations

import hmac

from e2b.envd.filesystem.filesystem_connect import FilesystemASGIApplication
from e2b.envd.process.process_connect import ProcessASGIApplication
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from emulators.boxes import Box, BoxNotRunning
from emulators.e2b.files import Files
from emulators.e2b.processes import Processes

PORT = 49983
VERSION = "0.6.7"


class Envd:
    """The envd of one box, which only who has its token may talk to. URLs of files that are signed
    in place of it are not emulated."""

    def __init__(self, box: Box, token: str) -> None:
        self._token = token
        self._processes = Processes(box)
        self._files = Files(box)
        self._services: dict[str, ASGIApp] = {
            "process.Process": ProcessASGIApplication(self._processes),
            "filesystem.Filesystem": FilesystemASGIApplication(self._files),
        }

    async def close(self) -> None:
        """Stop looking after what runs in the box."""
        await self._processes.close()

    def knows(self, token: str) -> bool:
        return hmac.compare_digest(token.encode(), self._token.encode())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        service = self._services.get(scope["path"].split("/")[1])
        if service is not None and self.knows(Request(scope).headers.get("x-access-token", "")):
            await service(scope, receive, send)
        else:
            answer = await self._plain(Request(scope, receive))
            await answer(scope, receive, send)

    async def _plain(self, request: Request) -> Response:
        asked = (request.method, request.url.path)
        if asked == ("GET", "/health"):
            return Response(status_code=204)
        if not self.knows(request.headers.get("x-access-token", "")):
            message = "unauthorized access, please provide a valid access token"
            return JSONResponse({"code": 401, "message": message}, 401)
        try:
            if asked == ("GET", "/files"):
                return await self._files.download(request)
            if asked == ("POST", "/files"):
                return await self._files.upload(request)
        except BoxNotRunning as error:
            return JSONResponse({"code": 502, "message": str(error)}, 502)
        return JSONResponse({"code": 404, "message": "not found"}, 404)
