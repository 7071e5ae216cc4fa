"""A follower of a session from its first event on, through every reconnect, that forgets nothing.

It is no user of the product's client: it keeps the bytes that the api showed it, and what was wrong
with them.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import httpx

PAUSE = 0.1
# The api sends a blank line every 15 s; a paused api is not a dead one.
SILENCE = 40.0

Event = dict[str, Any]


class Follower:
    def __init__(self, url: str, token: str, session_id: str) -> None:
        self._url = f"{url}/sessions/{session_id}/events"
        self._headers = {"Authorization": f"Bearer {token}", "Accept": "application/x-ndjson"}
        self.session_id = session_id
        self.shown: dict[int, bytes] = {}
        self.events: list[Event] = []
        self.wrong: list[str] = []
        self.reconnects = 0
        self._changed = asyncio.Condition()

    @property
    def last(self) -> int:
        return max(self.shown, default=0)

    @contextlib.asynccontextmanager
    async def following(self) -> AsyncIterator[None]:
        task = asyncio.create_task(self._follow())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def wait_for(self, wanted: Callable[[Event], bool], since: int = 0) -> Event:
        """The first event after `since` that is wanted; the caller bounds the wait."""
        looked_at = 0
        async with self._changed:
            while True:
                for event in self.events[looked_at:]:
                    if event["seq"] > since and wanted(event):
                        return event
                looked_at = len(self.events)
                await self._changed.wait()

    async def _follow(self) -> None:
        async with httpx.AsyncClient(trust_env=False) as http:
            while True:
                with contextlib.suppress(httpx.TransportError):
                    if not await self._connect(http):
                        return
                self.reconnects += 1
                await asyncio.sleep(PAUSE)

    async def _connect(self, http: httpx.AsyncClient) -> bool:
        """One connection; false when the session is deleted."""
        asked = {"after": str(self.last), "follow": "true"}
        timeout = httpx.Timeout(SILENCE, connect=5.0)
        async with http.stream(
            "GET", self._url, params=asked, headers=self._headers, timeout=timeout
        ) as answer:
            if not answer.is_success:
                return answer.status_code != httpx.codes.NOT_FOUND
            rest = b""
            async for piece in answer.aiter_bytes():
                *lines, rest = (rest + piece).split(b"\n")
                for line in lines:
                    if line.strip():
                        await self.take(line)
        return True

    async def take(self, line: bytes) -> None:
        """One line as it came."""
        event = json.loads(line)
        if "seq" not in event:
            return  # the stream's own error: the connection ends after it
        seq = event["seq"]
        before = self.shown.get(seq)
        if before is not None:
            same = "the same bytes" if before == line else "other bytes"
            self.wrong.append(f"event {seq} was shown twice, with {same}")
            return
        if seq != self.last + 1:
            self.wrong.append(f"event {seq} was shown after event {self.last}")
        async with self._changed:
            self.shown[seq] = line
            self.events.append(event)
            self._changed.notify_all()
