"""What surrounds every request: an id, a log line, headers, a size limit, a last resort."""

from __future__ import annotations

import asyncio
import logging
import re
import sys
import time
from uuid import uuid4

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.db.migrate import MigrationError
from api.errors import error_response
from api.metrics import Metrics
from contracts.errors import HoldfastError, TooLarge, Unavailable
from contracts.logs import REQUEST_HEADER, ids_in, working_on

log = logging.getLogger(__name__)

# A client that is still sending sees a reset instead of our answer, so the rest of a body that
# is too big is read and thrown away; a body beyond these bounds has its connection cut.
DRAIN_BYTES = 64 * 1024 * 1024
DRAIN_SECONDS = 10.0
UPLOAD = re.compile("/sessions/[^/]+/files/")

SECURITY_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'self'; object-src 'none'; base-uri 'none'; form-action 'self';"
        " frame-ancestors 'none'; frame-src blob:;"  # a PDF, made a blob of that type alone
        # no text can become markup: even a mistake in the page would be an error, not a script
        " require-trusted-types-for 'script'; trusted-types 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class Surround:
    """Outermost: names the request, logs it without its query, and ends what nobody caught."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, _in_words(send))
            return
        request_id = uuid4().hex
        scope.setdefault("state", {})["request_id"] = request_id
        with working_on(request_id=request_id, **ids_in(scope["path"])):
            await self._serve(request_id, scope, receive, send)

    async def _serve(self, request_id: str, scope: Scope, receive: Receive, send: Send) -> None:
        started, status, first_byte = time.perf_counter(), 0, None

        async def send_with_headers(message: Message) -> None:
            nonlocal status, first_byte
            if message["type"] == "http.response.start":
                status, first_byte = message["status"], time.perf_counter() - started
                headers = MutableHeaders(scope=message)
                headers[REQUEST_HEADER] = request_id
                for name, value in SECURITY_HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        try:
            await self._app(scope, receive, send_with_headers)
        except HoldfastError as error:
            # after the first byte there is no status left to say it with: the stream is cut
            log.warning("request %s was cut: %s: %s", request_id, error.code, error.message)
        except asyncio.CancelledError:
            # only at shutdown, when the grace is over; the server would answer with a bare 500
            if status == 0:
                stopped = Unavailable(
                    "The api was stopped before it could answer.",
                    hint="Look whether it was done, then try again.",
                    request_id=request_id,
                )
                await error_response(stopped)(scope, receive, send_with_headers)
            raise
        except Exception:  # the boundary: nothing may take the service down
            log.exception("request %s failed", request_id)
            if status == 0:
                internal = HoldfastError(
                    "Something went wrong in the api.",
                    hint="See the log of the api for this request id.",
                    request_id=request_id,
                )
                await error_response(internal)(scope, receive, send_with_headers)
        finally:
            took = time.perf_counter() - started
            self._metrics.answered(scope, status, took if first_byte is None else first_byte)
            # never the query: the login link carries the token there
            log.info(
                "%s %s %d %.1f ms", scope["method"], _shown(scope["path"]), status, took * 1000
            )


def _in_words(send: Send) -> Send:
    """What is expected to keep the api from starting is said without a trace."""

    async def told(message: Message) -> None:
        error = sys.exception()
        expected = isinstance(error, HoldfastError | MigrationError)
        if message["type"] == "lifespan.startup.failed" and expected:
            message = {**message, "message": f"The api does not start: {error}"}
        await send(message)

    return told


def _shown(path: str) -> str:
    """A path for the log: one line, of bounded length."""
    return path[:300].encode("unicode_escape").decode("ascii")


class BodyLimit:
    """Refuses a body over the limit, whether its length is declared or not. Files have a limit of
    their own."""

    def __init__(self, app: ASGIApp, bodies: int, uploads: int) -> None:
        self._app = app
        self._bodies = bodies
        self._uploads = uploads

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        upload = is_upload(scope)
        most = self._uploads if upload else self._bodies
        said = _message(most, "HOLDFAST_UPLOAD_BYTES" if upload else "HOLDFAST_BODY_BYTES")
        declared = Headers(scope=scope).get("content-length", "")
        if declared.isdecimal() and int(declared) > most:
            if int(declared) <= DRAIN_BYTES:
                await drain(receive)
            refused = TooLarge(said, hint="Send less.")
            await error_response(refused, {"Connection": "close"})(scope, receive, send)
            return
        read = 0

        async def counted() -> Message:
            nonlocal read
            message = await receive()
            if message["type"] == "http.request":
                read += len(message.get("body", b""))
                if read > most:
                    if message.get("more_body", False):
                        await drain(receive)
                    # an HTTPException, because FastAPI turns any other into its own 400
                    raise HTTPException(413, said, {"Connection": "close"})
            return message

        await self._app(scope, counted, send)


def is_upload(scope: Scope) -> bool:
    return scope["method"] == "PUT" and UPLOAD.match(scope["path"]) is not None


def _message(most: int, setting: str) -> str:
    return f"The body is larger than {most} bytes ({setting})."


async def drain(receive: Receive) -> None:
    """Read what is left of a body and throw it away, within bounds."""
    left = DRAIN_BYTES
    try:
        async with asyncio.timeout(DRAIN_SECONDS):
            while left > 0:
                message = await receive()
                left -= len(message.get("body", b""))
                if message["type"] != "http.request" or not message.get("more_body", False):
                    return
    except TimeoutError:
        return
