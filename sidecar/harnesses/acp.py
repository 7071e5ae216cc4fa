"""ACP over sandbox-agent's HTTP: requests go by POST, everything comes back by SSE.

Two hazards shape it: past its timeout a POST never returns, and when the adapter dies a POST hangs.
So an answer is taken from SSE, where it stands behind all that was said before it, and the
adapter's death ends every request at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import re
import secrets
from collections.abc import AsyncIterator, Coroutine, Iterator, Mapping
from typing import Any

import aiohttp

from contracts.errors import (
    HarnessExited,
    HarnessStartFailed,
    HoldfastError,
    PromptFailed,
    StreamGap,
)
from sidecar.harnesses import sse
from sidecar.harnesses.untrusted import is_good, parsed, shown, text_of
from sidecar.providers.base import WORKSPACE
from sidecar.tasks import Background, background

START_SECONDS = 60
CALL_SECONDS = 60
SEND_SECONDS = 10
DELETE_SECONDS = 2  # a delete of a live adapter may never answer, and has taken effect by then
SSE_LAG_SECONDS = 5.0
RECONNECT_TRIES = 5
RECONNECT_SECONDS = 0.2
# A turn takes as long as it takes; to be connected does not.
UNBOUNDED = aiohttp.ClientTimeout(total=None, sock_connect=20)
# What has come and was not taken yet: beyond this nothing more is read, and the agent has to wait.
MOST_WAITING = 10_000
MOST_WAITING_BYTES = 64 << 20
# The ids that connections of ours give to their requests.
OUR_ID = re.compile(r"initialize|[0-9a-f]{8}-[0-9]{1,9}")
MOST_SESSION_CHARS = 1000
PROTOCOL_VERSION = 1
INITIALIZE = {
    "protocolVersion": PROTOCOL_VERSION,
    "clientCapabilities": {
        "fs": {"readTextFile": False, "writeTextFile": False},
        "terminal": False,
    },
    "clientInfo": {"name": "holdfast", "version": "1"},
}

# A message of the agent and the SSE id it came with.
Received = tuple[int, dict[str, Any]]


class AcpConnection:
    """One adapter process behind sandbox-agent. `session` is the ACP session once there is one."""

    def __init__(
        self,
        http: aiohttp.ClientSession,
        server_id: str,
        agent: str,
        *,
        session: str | None = None,
        last_event_id: int = 0,
    ) -> None:
        self._http = http
        self.server_id = server_id
        self._agent = agent
        self.session = session
        self.last_event_id = last_event_id
        self._path = f"v1/acp/{server_id}"
        # Ids of one adapter must differ between the connections that have used it.
        self._ids = (f"{secrets.token_hex(4)}-{n}" for n in itertools.count(1))
        self._waiting: dict[str, asyncio.Future[dict[str, Any]]] = {}
        self._received: asyncio.Queue[tuple[Received, int]] = asyncio.Queue()
        self._waiting_bytes = 0
        self.heard_bytes = 0
        """The size of all messages that were taken."""
        self._room = asyncio.Event()
        self._deaf = False
        self._dead: HoldfastError | None = None
        self._stream: aiohttp.ClientResponse | None = None
        self._tasks: Background

    @classmethod
    async def start(cls, http: aiohttp.ClientSession, server_id: str, agent: str) -> AcpConnection:
        """Start an adapter. Raises: HarnessStartFailed."""
        connection = cls(http, server_id, agent)
        body = {"jsonrpc": "2.0", "id": "initialize", "method": "initialize", "params": INITIALIZE}
        try:
            async with (
                asyncio.timeout(START_SECONDS),
                http.post(
                    connection._path, params={"agent": agent}, json=body, allow_redirects=False
                ) as answer,
            ):
                text = await text_of(answer)
        except (aiohttp.ClientError, TimeoutError) as error:
            said = str(error) or f"no answer in {START_SECONDS} s"
            raise HarnessStartFailed(f"{agent} did not start: {said}") from error
        if not is_good(answer) or "error" in parsed(text):
            raise HarnessStartFailed(f"{agent} did not start: {text[:1000]}")
        return connection

    @contextlib.asynccontextmanager
    async def listening(self) -> AsyncIterator[None]:
        """Follow what the agent says, from where the last listener stopped."""
        async with background() as tasks:
            self._tasks = tasks
            tasks.start(self._listen())
            yield

    async def _listen(self) -> None:
        tries = 0
        while self._dead is None:
            before = self.last_event_id
            try:
                await self._follow_stream()
            except (aiohttp.ClientError, TimeoutError):
                pass
            except sse.EventTooLong as error:
                self._die(HarnessExited(f"{self._agent} was cut off: {error}"))
                return
            except StreamGap as gap:
                self._die(gap)
                return
            except Exception as error:  # noqa: BLE001 - the boundary: a prompt must not wait for it
                said = f"{type(error).__name__}: {error}"
                self._die(HarnessExited(f"{self._agent} cannot be understood: {shown(said)}"))
                return
            tries = 0 if self.last_event_id != before else tries + 1
            if tries >= RECONNECT_TRIES:
                self._die(HarnessExited("sandbox-agent does not answer any more"))
                return
            await asyncio.sleep(RECONNECT_SECONDS)

    async def _follow_stream(self) -> None:
        headers = {"accept": "text/event-stream", "last-event-id": str(self.last_event_id)}
        async with self._http.get(
            self._path, headers=headers, timeout=UNBOUNDED, allow_redirects=False
        ) as response:
            if not is_good(response):
                raise aiohttp.ClientPayloadError(f"HTTP {response.status}")
            self._stream = response
            async for event in sse.events(response):
                self._take(event)
                while self._dead is None and self._is_full():
                    self._room.clear()
                    await self._room.wait()
                if self._dead is not None:
                    return

    def _is_full(self) -> bool:
        many = self._received.qsize() >= MOST_WAITING
        return many or self._waiting_bytes >= MOST_WAITING_BYTES

    def _take(self, event: sse.ServerSentEvent) -> None:
        number = self.last_event_id + 1 if event.id is None else event.id
        # The ring of sandbox-agent forgets silently: only a hole in the ids tells.
        if number > self.last_event_id + 1:
            missing = number - self.last_event_id - 1
            raise StreamGap(f"{missing} events of {self._agent} were lost on the way")
        if number <= self.last_event_id:
            return
        self.last_event_id = number
        message = parsed(event.data)
        if "method" not in message and OUR_ID.fullmatch(str(message.get("id", ""))):
            self._answer(str(message["id"]), message)
        elif message.get("method") == "_adapter/agent_exited":
            detail = shown(message.get("params", {}))[:500]
            self._die(HarnessExited(f"{self._agent} exited: {detail}"))
        elif not self._deaf:
            self._received.put_nowait(((number, message), len(event.data)))
            self._waiting_bytes += len(event.data)

    def _answer(self, request_id: str, message: dict[str, Any]) -> None:
        future = self._waiting.pop(request_id, None)
        if future is not None and not future.done():
            future.set_result(message)

    def _die(self, error: HoldfastError) -> None:
        self._dead = error
        self._room.set()
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(error)
        self._waiting.clear()

    def lost(self, error: HoldfastError) -> None:
        """Told from outside that the harness is dead, which the stream does not always say."""
        self._die(error)

    async def request(
        self, method: str, params: Mapping[str, Any], *, bound: float | None = CALL_SECONDS
    ) -> dict[str, Any]:
        """Call the agent, while listening, and return its result.

        Raises: PromptFailed, when it answers with an error; HarnessExited; StreamGap.
        """
        return await self._request(self.next_id(), method, params, bound)

    def next_id(self) -> str:
        """An id for a request, never used before."""
        return next(self._ids)

    async def _request(
        self, request_id: str, method: str, params: Mapping[str, Any], bound: float | None
    ) -> dict[str, Any]:
        answered = self._expect(request_id)
        body = {"jsonrpc": "2.0", "id": request_id, "method": method, "params": dict(params)}
        post = self._tasks.start(self._post_for(request_id, body, answered))
        try:
            async with asyncio.timeout(bound):
                return self._result(method, await answered)
        except TimeoutError:
            raise HarnessExited(f"{self._agent} did not answer {method} in {bound} s") from None
        finally:
            self._waiting.pop(request_id, None)
            post.cancel()

    def _expect(self, request_id: str) -> asyncio.Future[dict[str, Any]]:
        if self._dead is not None:
            raise self._dead
        future: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._waiting[request_id] = future
        return future

    def _result(self, method: str, answer: Mapping[str, Any]) -> dict[str, Any]:
        if "error" in answer:
            said = shown(_error_text(answer["error"]))
            raise PromptFailed(f"{self._agent}: {said}", method=method)
        result = answer.get("result")
        return result if isinstance(result, dict) else {}

    async def _post_for(
        self, request_id: str, body: Mapping[str, Any], answered: asyncio.Future[dict[str, Any]]
    ) -> None:
        try:
            async with self._http.post(
                self._path, json=body, timeout=UNBOUNDED, allow_redirects=False
            ) as answer:
                text = await text_of(answer)
        except (aiohttp.ClientError, TimeoutError):
            return  # SSE brings the answer, or the listener notices that all is lost
        if not is_good(answer):
            self._answer(request_id, {"error": {"message": text[:1000]}})
        elif not await self._comes_by_stream(answered):
            self._die(StreamGap(f"the last events of {self._agent} were lost on the way"))

    async def _comes_by_stream(self, answered: asyncio.Future[dict[str, Any]]) -> bool:
        """Wait for an answer that the POST has brought already. It counts only behind everything
        that was said before it: sandbox-agent drops messages that a slow listener is too late for,
        and what was dropped last leaves no hole in the ids. A new connection tells: it brings what
        is still there, and shows the hole otherwise."""
        for fresh in (False, True):
            if fresh and self._stream is not None:
                self._stream.close()
            heard = -1
            while heard != self.last_event_id or self._is_full():
                heard = self.last_event_id
                await asyncio.wait({answered}, timeout=SSE_LAG_SECONDS)
                if answered.done():
                    return True
        return False

    async def notify(self, method: str, params: Mapping[str, Any]) -> None:
        await self._send({"jsonrpc": "2.0", "method": method, "params": dict(params)})

    async def respond(self, request_id: Any, result: Mapping[str, Any]) -> bool:
        """Answer a request of the agent; False when it may not have got it."""
        return await self._send({"jsonrpc": "2.0", "id": request_id, "result": dict(result)})

    async def _send(self, body: Mapping[str, Any]) -> bool:
        try:
            async with (
                asyncio.timeout(SEND_SECONDS),
                self._http.post(self._path, json=body, allow_redirects=False) as answer,
            ):
                return is_good(answer)
        except (aiohttp.ClientError, TimeoutError):
            return False

    async def received(self) -> Received:
        """The next message of the agent that is not an answer."""
        return self._taken(await self._received.get())

    def _taken(self, waited: tuple[Received, int]) -> Received:
        received, size = waited
        self._waiting_bytes -= size
        self.heard_bytes += size
        self._room.set()
        return received

    @contextlib.contextmanager
    def _not_listening(self) -> Iterator[None]:
        """What is said meanwhile is nobody's: a replay, or what a harness tells as it sets up."""
        self._deaf = True
        try:
            yield
        finally:
            self._deaf = False
            self.drain()

    def drain(self) -> list[Received]:
        """What has come and was not taken yet."""
        taken = []
        while not self._received.empty():
            taken.append(self._taken(self._received.get_nowait()))
        return taken

    async def new_session(self) -> dict[str, Any]:
        with self._not_listening():
            opened = await self.request("session/new", {"cwd": WORKSPACE, "mcpServers": []})
        session = opened.get("sessionId")
        if not isinstance(session, str) or not 0 < len(session) <= MOST_SESSION_CHARS:
            raise HarnessStartFailed(f"{self._agent} opened a session without a name")
        self.session = session
        return opened

    async def load_session(self, session: str) -> dict[str, Any]:
        """Bring a session back from the harness's own state, without its replay.

        Raises: PromptFailed, when the harness has no such session.
        """
        params = {"sessionId": session, "cwd": WORKSPACE, "mcpServers": []}
        with self._not_listening():
            opened = await self.request("session/load", params)
        self.session = session
        return opened

    async def set_mode(self, mode: str) -> None:
        await self.request("session/set_mode", {"sessionId": self.session, "modeId": mode})

    async def set_option(self, option: str, value: str) -> None:
        await self.request(
            "session/set_config_option",
            {"sessionId": self.session, "configId": option, "value": value},
        )

    async def prompt(self, text: str, request_id: str) -> dict[str, Any]:
        """Returns when the turn is over, however long that takes."""
        params = {"sessionId": self.session, "prompt": [{"type": "text", "text": text}]}
        return await self._request(request_id, "session/prompt", params, None)

    def expect_answer(self, request_id: str) -> Coroutine[Any, Any, dict[str, Any]]:
        """What `prompt` would return, for a prompt that an earlier connection sent. Called before
        listening begins, so that no answer goes by."""
        answered = self._expect(request_id)

        async def answer() -> dict[str, Any]:
            return self._result("session/prompt", await answered)

        return answer()

    async def cancel(self) -> None:
        await self.notify("session/cancel", {"sessionId": self.session})

    async def close_session(self) -> None:
        await self.request("session/close", {"sessionId": self.session})

    async def delete(self) -> None:
        """End the adapter. Bounded: it has taken effect even when it does not answer."""
        with contextlib.suppress(aiohttp.ClientError, TimeoutError):
            async with (
                asyncio.timeout(DELETE_SECONDS),
                self._http.delete(self._path, allow_redirects=False),
            ):
                pass


def _error_text(error: Any) -> str:
    if not isinstance(error, dict):
        return str(error)
    data = error.get("data")
    detail = f" ({shown(data)[:1000]})" if data else ""
    return f"{shown(error.get('message', error))[:1000]}{detail}"
