"""The sidecar, asked over HTTP on a port or a unix socket."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote
from uuid import UUID

import httpx
from pydantic import BaseModel, ValidationError

from contracts.bodies import (
    Agreed,
    Capabilities,
    Changed,
    Destroyed,
    Edited,
    FilePage,
    FilesDeleted,
    Health,
    Killed,
    PermissionAnswer,
    Released,
    RunBody,
    RunList,
    RunRequest,
    SandboxList,
    Terms,
)
from contracts.errors import (
    HoldfastError,
    SidecarUnavailable,
    StreamGap,
    WorkspaceBusy,
    from_body,
)
from contracts.events import dumps
from contracts.logs import request_headers
from contracts.redaction import Redactor
from contracts.tls import verification_for

if TYPE_CHECKING:
    from api.settings import Settings

B = TypeVar("B", bound=BaseModel)

TIMEOUT = httpx.Timeout(30.0, connect=5.0)
# Killing and letting go wait for processes to end and mounts to be flushed.
SLOW = httpx.Timeout(240.0, connect=5.0)
# A run may be silent for longer; then the connection is opened anew, which costs nothing
# and finds out whether the other end is still there.
STREAM = httpx.Timeout(60.0, connect=5.0)
CAPABILITIES_SECONDS = 5.0
MAX_LINE_BYTES = 64 * 1024 * 1024
MAX_ERROR_BYTES = 1024 * 1024


@contextlib.contextmanager
def mapped() -> Iterator[None]:
    """Turn whatever httpx raises into ours.

    Raises: SidecarUnavailable.
    """
    try:
        yield
    except (httpx.HTTPError, httpx.InvalidURL, httpx.StreamError) as error:
        raise _unavailable(f"does not answer ({type(error).__name__})") from error


def _unavailable(what: str) -> SidecarUnavailable:
    return SidecarUnavailable(
        f"The sidecar {what}.", hint="Try again; if it goes on, see the log of the sidecar."
    )


async def _error(response: httpx.Response) -> HoldfastError:
    """The error that a bad answer tells."""
    if response.status_code == 401:
        # not the caller's token: what the api itself sent was refused
        return _unavailable("refuses the secret of the api")
    content = bytearray()
    async for chunk in response.aiter_bytes():
        content += chunk
        if len(content) > MAX_ERROR_BYTES:
            break
    try:
        return from_body(dict(json.loads(bytes(content))["error"]))
    except (ValueError, KeyError, TypeError):
        return _unavailable(f"answered HTTP {response.status_code} without saying why")


class Sidecar:
    """Every call raises SidecarUnavailable when the sidecar cannot be asked, else its own error."""

    def __init__(self, http: httpx.AsyncClient, redactor: Redactor) -> None:
        self._http = http
        self._redactor = redactor
        self._known: tuple[float, Capabilities] | None = None

    async def check(self) -> None:
        """Raises: SidecarUnavailable."""
        await self._call("GET", "/healthz", Health)

    async def capabilities(self) -> Capabilities:
        """What the stack can run, at most a few seconds old.

        While the sidecar is away the last answer is given: a turn may start and wait for it.
        """
        if self._known is not None and time.monotonic() - self._known[0] < CAPABILITIES_SECONDS:
            return self._known[1]
        try:
            answer = await self._call("GET", "/capabilities", Capabilities)
        except SidecarUnavailable:
            if self._known is None:
                raise
            return self._known[1]
        self._known = (time.monotonic(), answer)
        return answer

    async def start(self, request: RunRequest) -> RunBody:
        """Hand a turn over; may be repeated."""
        content = request.model_dump_json().encode()
        return await self._call("POST", "/runs", RunBody, content=content)

    async def run(self, turn_id: UUID) -> RunBody:
        """Raises: RunNotFound."""
        return await self._call("GET", f"/runs/{turn_id}", RunBody)

    async def cancel(self, turn_id: UUID) -> RunBody:
        """Raises: RunNotFound."""
        return await self._call("POST", f"/runs/{turn_id}/cancel", RunBody)

    async def answer(self, turn_id: UUID, permission_id: str, answer: PermissionAnswer) -> RunBody:
        """Hand on the answer to what a harness asked; may be repeated.

        Raises: RunNotFound, NotAskedYet.
        """
        path = f"/runs/{turn_id}/permissions/{quote(permission_id, safe='')}"
        return await self._call("POST", path, RunBody, content=dumps(answer.model_dump()))

    async def running(self) -> RunList:
        """The runs that have not ended."""
        return await self._call("GET", "/runs", RunList)

    async def sandboxes(self, *, measure: bool = False) -> SandboxList:
        """`measure`: with the memory of each."""
        return await self._call("GET", "/sandboxes", SandboxList, params={"measure": measure})

    async def destroy(self, provider: str, sandbox_id: str) -> Destroyed:
        """End a sandbox that nothing answers for.

        Raises: TurnRunning when its session uses it.
        """
        path = f"/sandboxes/{quote(provider, safe='')}/{quote(sandbox_id, safe='')}"
        return await self._call("DELETE", path, Destroyed, limits=SLOW)

    async def kill(self, session_id: UUID) -> Killed:
        return await self._call("POST", f"/sessions/{session_id}/kill", Killed, limits=SLOW)

    async def release(self, session_id: UUID) -> Released:
        """Destroy the session's sandbox and let go of its mount."""
        return await self._call("DELETE", f"/sessions/{session_id}", Released, limits=SLOW)

    async def agree(self, session_id: UUID, terms: Terms) -> Agreed:
        """What these terms name holds for the session from here on; may be repeated."""
        content = terms.model_dump_json(exclude_unset=True).encode()
        path = f"/sessions/{session_id}/terms"
        return await self._call("PUT", path, Agreed, content=content)

    async def live(self, session_id: UUID, params: Mapping[str, str | int]) -> FilePage:
        """Raises: FileNotFound, SandboxNotFound."""
        return await self._call("GET", f"/sessions/{session_id}/live", FilePage, params=params)

    @contextlib.asynccontextmanager
    async def live_file(self, session_id: UUID, path: str) -> AsyncIterator[httpx.Response]:
        """Raises: FileNotFound, SandboxNotFound."""
        async with self._open(
            "GET", f"/sessions/{session_id}/live/file", params={"path": path}
        ) as response:
            yield response

    async def put_file(
        self, session_id: UUID, path: str, content: AsyncIterator[bytes], *, replace: bool
    ) -> Changed:
        """Through the mount.

        Raises: SandboxNotFound when there is none, FileExists, InvalidPath.
        """
        params = {"path": path, "replace": replace}
        route = f"/sessions/{session_id}/mount/file"
        return await self._call("PUT", route, Changed, content=content, params=params, limits=SLOW)

    async def make_folder(self, session_id: UUID, path: str) -> Changed:
        """As `put_file`."""
        content = dumps({"path": path})
        route = f"/sessions/{session_id}/mount/folder"
        return await self._call("POST", route, Changed, content=content)

    async def move(self, session_id: UUID, source: str, target: str) -> Changed:
        """As `put_file`, and FileNotFound."""
        content = dumps({"source": source, "target": target})
        route = f"/sessions/{session_id}/mount/move"
        return await self._call("POST", route, Changed, content=content, limits=SLOW)

    async def delete_file(self, session_id: UUID, path: str) -> FilesDeleted:
        """As `put_file`, and FileNotFound."""
        route = f"/sessions/{session_id}/mount/file"
        return await self._call(
            "DELETE", route, FilesDeleted, params={"path": path}, limits=httpx.Timeout(660.0)
        )

    @contextlib.asynccontextmanager
    async def hold(self, session_id: UUID, edits: Sequence[Edited]) -> AsyncIterator[None]:
        """Nothing mounts the workspace for the time of the block, which is cancelled when the
        sidecar lets go of it before its end.

        Raises: WorkspaceMounted, WorkspaceBusy.
        """
        content = dumps({"edits": [edit.model_dump() for edit in edits]})
        path = f"/sessions/{session_id}/hold"
        async with (
            self._open("POST", path, content=content, limits=SLOW) as response,
            _while_it_lasts(response),
        ):
            yield

    async def lines(self, turn_id: UUID, after: int) -> AsyncGenerator[bytes, None]:
        """The run's stream from line `after` on, complete lines only, until it closes.

        Raises: RunNotFound, StreamGap for a line without an end.
        """
        async with self._open(
            "GET", f"/runs/{turn_id}/events", params={"after": after}, limits=STREAM
        ) as response:
            rest = bytearray()
            async for chunk in response.aiter_bytes():
                # only what is new is searched: a line of megabytes comes in many chunks
                searched = len(rest)
                rest += chunk
                begin = 0
                while (end := rest.find(b"\n", max(searched, begin))) >= 0:
                    if end > begin:
                        # the sidecar masks what it knows; of the api's own secrets it knows none
                        yield self._redactor.line(bytes(rest[begin:end]))
                    begin = end + 1
                del rest[:begin]
                if len(rest) > MAX_LINE_BYTES:
                    raise StreamGap(f"A line of the run has more than {MAX_LINE_BYTES} bytes.")

    async def _call(
        self,
        method: str,
        path: str,
        answer: type[B],
        *,
        content: bytes | AsyncIterator[bytes] | None = None,
        params: Mapping[str, Any] | None = None,
        limits: httpx.Timeout = TIMEOUT,
    ) -> B:
        async with self._open(
            method, path, content=content, params=params, limits=limits
        ) as response:
            body = await response.aread()
        try:
            return answer.model_validate_json(body)
        except ValidationError as error:
            raise _unavailable(f"answered something that is not a {answer.__name__}") from error

    @contextlib.asynccontextmanager
    async def _open(
        self,
        method: str,
        path: str,
        *,
        content: bytes | AsyncIterator[bytes] | None = None,
        params: Mapping[str, Any] | None = None,
        limits: httpx.Timeout = TIMEOUT,
    ) -> AsyncIterator[httpx.Response]:
        headers = request_headers()
        if isinstance(content, bytes):
            headers["Content-Type"] = "application/json"
        with mapped():
            async with self._http.stream(
                method, path, content=content, params=params, headers=headers, timeout=limits
            ) as response:
                if not response.is_success:
                    raise await _error(response)
                yield response


@contextlib.asynccontextmanager
async def _while_it_lasts(response: httpx.Response) -> AsyncIterator[None]:
    """Cancels the block when the answer ends. Raises: WorkspaceBusy."""
    lost = False
    try:
        async with asyncio.timeout(None) as bound:

            async def watch() -> None:
                nonlocal lost
                with contextlib.suppress(httpx.HTTPError):
                    async for _ in response.aiter_raw():
                        pass
                lost = True
                bound.reschedule(0)

            watching = asyncio.create_task(watch())
            try:
                yield
            finally:
                watching.cancel()
                await asyncio.wait({watching})
    except TimeoutError:
        if not bound.expired():
            raise
    if lost:
        raise WorkspaceBusy(
            "The sidecar let go of the workspace before the change was made.",
            hint="Some of it may be done: look, and try again.",
        )


@contextlib.asynccontextmanager
async def open_sidecar(
    settings: Settings, redactor: Redactor | None = None
) -> AsyncIterator[Sidecar]:
    """The sidecar's client for the time of the block; what it tells is masked by `redactor`."""
    url, _, socket = settings.sidecar_url.partition("unix:")
    transport = httpx.AsyncHTTPTransport(
        uds=socket or None,
        verify=verification_for(settings.sidecar_url),
        # one stream for every running turn, and calls beside them
        limits=httpx.Limits(max_connections=None, max_keepalive_connections=20),
        trust_env=False,
    )
    secret = settings.sidecar_secret.get_secret_value()
    async with httpx.AsyncClient(
        transport=transport,
        base_url=url or "http://sidecar",
        headers={"Authorization": f"Bearer {secret}"},
        timeout=TIMEOUT,
        trust_env=False,
    ) as http:
        yield Sidecar(http, redactor or Redactor())
